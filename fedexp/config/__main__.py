"""``python -m fedexp.config``: writes the run settings, as they are declared, into ``conf/config.yaml``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedexp.config.documented import write
from fedexp.config.sources import conf_dir
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console


def main(argv: Sequence[str]) -> int:
    """Writes the file; returns the exit code."""
    return perform(lambda: _write(argv))


def _write(argv: Sequence[str]) -> None:
    Parser(
        prog="python -m fedexp.config",
        description="Writes the run settings with their defaults and documentation, which are declared in\n"
        "fedexp/config/settings.py, into conf/config.yaml. To be called after the declaration has changed.",
    ).read(argv)
    path = conf_dir() / "config.yaml"
    words = "written" if write(path) else "up to date"
    open_console(highlight=False, markup=False, soft_wrap=True).print(f"{path}: {words}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
