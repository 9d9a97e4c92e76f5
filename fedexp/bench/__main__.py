"""``python -m fedexp.bench``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.bench import usage
from fedexp.bench.arguments import add_loop_options, folder, loop_overrides, positive
from fedexp.bench.peers.catalog import PEERS
from fedexp.bench.speed import VARIANTS, usual
from fedexp.bench.workload import WORKLOADS
from fedexp.config.hydra_loader import choices_of
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError, FedexpError
from fedexp.terminal.command import complain
from fedexp.terminal.console import open_console

EPILOG = "\n".join(["workloads:", *(f"  {name}  {w.title}" for name, w in WORKLOADS.items())])
COMMANDS = ("speed", "algos", "startup", "scale", "gpu-check")
CONTESTS = ("speed", "algos")  # these have ratios
CSV_FOLDER = "bench"  # in the current folder
WIDTH_WITHOUT_TERMINAL = 160  # columns


def main(argv: Sequence[str]) -> int:
    """Measures what is asked for; returns the exit code."""
    command, rest = (argv[0], list(argv[1:])) if argv and argv[0] in COMMANDS else ("speed", list(argv))
    console = open_console(width_without_terminal=WIDTH_WITHOUT_TERMINAL)
    try:
        if command == "scale":
            from fedexp.bench import scale

            return scale.main(rest)
        if command == "gpu-check":
            from fedexp.bench import gpu_check

            return gpu_check.main(rest, console)
        asked = _parser(command).parse_args(rest)
        usage.demand_linux()
        found = _measure(command, asked, console)
    except FedexpError as error:
        complain(error)
        return 2 if isinstance(error, ConfigError) else 1
    _write(command, asked, found, console)
    return 0


def _write(command: str, asked: argparse.Namespace, found: Any, console: Console) -> None:
    from fedexp.bench import record

    if command in CONTESTS:
        path = record.write_csv(asked.to, command, found, asked.device)
        console.print(f"[dim]written to {path}[/]", highlight=False, soft_wrap=True)
    if asked.json is not None:
        record.write_json(asked.json, {command: found})


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fedexp.bench", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [speed|algos|startup|scale|gpu-check] [name ...] [options]",
        description="Times fedexp in turns with a raw loop that takes the same steps of the same method (speed, the "
        "default), methods in turns with FedAvg (algos: all of them on W0, if none is named), or the way from the "
        "command to the first round (startup).",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="name", help="workloads (below); of algos, methods too")
    parser.add_argument("--turns", type=positive, default=10, help="turns that count, of each (default: 10)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    if command in CONTESTS:
        parser.add_argument("--warmup", type=positive, default=2, help="turns before them (default: 2)")
        add_loop_options(parser)
        parser.add_argument(
            "--to", type=folder, default=CSV_FOLDER, metavar="FOLDER",
            help=f"where a csv with a row for each line is written (default: {CSV_FOLDER})",
        )  # fmt: skip
    if command == "speed":
        have = ", ".join(usual())
        parser.add_argument("--variants", nargs="+", default=usual(), help=f"loop/executor (default: {have})")
        parser.add_argument(
            "--peers", nargs="*", metavar="NAME", default=None,
            help=f"other frameworks on the same workloads ({', '.join(PEERS)}; without a name all that can be had)",
        )  # fmt: skip
    return parser


def _measure(command: str, asked: argparse.Namespace, console: Console) -> Any:
    if command == "algos":
        from fedexp.bench import algos

        names = [n for n in asked.names if n in WORKLOADS] or ["W0"]
        methods = [n for n in asked.names if n not in WORKLOADS] or [m for m in choices_of("algo") if m != algos.BASE]
        methods = _known(methods, [*choices_of("algo"), *WORKLOADS])
        return algos.measure(
            names, methods, turns=asked.turns, warmup=asked.warmup, console=console, more=loop_overrides(asked)
        )
    if command == "startup":
        from fedexp.bench import startup

        return startup.measure(_known(asked.names or ["W1"], list(WORKLOADS)), turns=asked.turns, console=console)
    from fedexp.bench import speed

    names = _known(asked.names or ["W1", "W2", "W3"], list(WORKLOADS))
    variants = _known(asked.variants, list(VARIANTS))
    return speed.measure(
        names, variants, turns=asked.turns, warmup=asked.warmup, console=console, more=loop_overrides(asked),
        peers=_peers(asked, console),
    )  # fmt: skip


def _peers(asked: argparse.Namespace, console: Console) -> list[str]:
    """The frameworks that are asked for and can be timed; says why others cannot."""
    if asked.peers is None:
        return []
    if asked.device not in ("auto", "cpu"):
        raise ConfigError(f"--peers are timed on the CPU, not with --device {asked.device}. Use --device cpu.")
    obstacles = {name: PEERS[name].obstacle() for name in _known(asked.peers or list(PEERS), list(PEERS))}
    for name, obstacle in obstacles.items():
        if obstacle:
            console.print(f"{name} is left out: it {obstacle}", highlight=False, soft_wrap=True)
    return [name for name, obstacle in obstacles.items() if not obstacle]


def _known(asked: Sequence[str], words: Sequence[str]) -> list[str]:
    if unknown := [a for a in asked if a not in words]:
        raise ConfigError(f"{unknown[0]} is nothing that can be measured. {nearest(unknown[0], words)}")
    return list(asked)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders and processes are cleared away
    sys.exit(main(sys.argv[1:]))
