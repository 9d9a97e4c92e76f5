"""Runs from the command line: ``python -m fedexp.runs status FOLDER`` and ``diff A B``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fedexp.display.console import open_console
from fedexp.errors import FedexpError
from fedexp.runs.plain import plain

USAGE = """\
python -m fedexp.runs status FOLDER   which runs below a folder are done, running, partial, failed, damaged, missing
python -m fedexp.runs diff A B        where two runs part: settings, partition, first round, client, tensor

status exits with 0 if everything is done, else 1; diff with 0 if all numbers are equal, else 1; trouble is 2."""


def main(argv: Sequence[str]) -> int:
    """Does what the first argument says; returns the exit code."""
    console = open_console(highlight=False, markup=False, soft_wrap=True)
    try:
        match argv:
            case ["status", folder]:
                from fedexp.runs.status import show_status

                return show_status(Path(folder), console)
            case ["diff", a, b]:
                from fedexp.runs.diff import show_diff

                return show_diff(Path(a), Path(b), console)
            case ["-h" | "--help" | "help"]:
                console.print(USAGE)
                return 0
    except FedexpError as error:
        open_console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(plain(error))
        return 2
    open_console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(USAGE)
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    sys.exit(main(sys.argv[1:]))
