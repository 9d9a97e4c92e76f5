"""Runs from the command line: ``python -m fedexp.runs status FOLDER``, ``diff A B``, ``table`` and ``plot``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

USAGE = """
python -m fedexp.runs status FOLDER   which runs below a folder are done, running, partial, failed, damaged, missing
python -m fedexp.runs diff A B        where two runs part: settings, partition, first round, client, tensor
python -m fedexp.runs table FOLDER [metric=M,… rows=KEY,… columns=KEY,… over=seed show=mean±std|interval|values
                             compare=ROW sort=name|value rule=RULE
                             format=terminal|markdown|latex|csv to=FILE KEY=VALUE,…]
python -m fedexp.runs plot KIND FOLDER to=FILE.html|svg|png|pdf [OPTION=… KEY=VALUE,…]
                                      curves, plane, gains, fairness, classes, partition, parameter, heatmap, zigzag,
                                      subsets; of what probes have seen: observed, proxies, spectrum, relativity, cost;
                                      or a figure of a paper (map/fig9). KEY=VALUE chooses runs by their settings"""
CODES = "status exits with 0 if everything is done, else 1; diff with 0 if all numbers are equal, else 1; trouble is 2."

WIDTH_WITHOUT_TERMINAL = 160  # columns


def main(argv: Sequence[str]) -> int:
    """Does what the first argument says; returns the exit code."""
    return perform(lambda: _show(argv), trouble=2)


def _show(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("table", "plot") and not {"-h", "--help"} & set(argv):
        return _report(argv[0], argv[1:])
    parser = Parser(prog="python -m fedexp.runs", usage=USAGE, epilog=CODES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    status = commands.add_parser("status", usage=USAGE, epilog=CODES)
    status.add_argument("folder", metavar="FOLDER", type=Path)
    diff = commands.add_parser("diff", usage=USAGE, epilog=CODES)
    diff.add_argument("a", metavar="A", type=Path)
    diff.add_argument("b", metavar="B", type=Path)
    commands.add_parser("table", usage=USAGE, epilog=CODES)
    commands.add_parser("plot", usage=USAGE, epilog=CODES)
    given = parser.read(argv)
    console = open_console(highlight=False, markup=False, soft_wrap=True)
    if given.command == "status":
        from fedexp.runs.status import show_status

        return show_status(given.folder, console)
    from fedexp.runs.diff import show_diff

    return show_diff(given.a, given.b, console)


def _report(command: str, argv: Sequence[str]) -> int:
    from fedexp.report.command import plot, table

    console = open_console(highlight=False, markup=False, width_without_terminal=WIDTH_WITHOUT_TERMINAL)
    return {"table": table, "plot": plot}[command](argv, console)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    sys.exit(main(sys.argv[1:]))
