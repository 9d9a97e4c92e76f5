"""What our command lines have in common: how arguments are read, and how errors are told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rich.text import Text

from fedexp.errors import ConfigError, FedexpError
from fedexp.terminal.console import open_console


class Parser(argparse.ArgumentParser):
    """The arguments of a command. ``key=value`` is the same as ``--key=value``; wrong ones are a ``ConfigError``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Reads all arguments.

        Raises:
            ConfigError: If one is not known, missing or wrong.
        """
        given, rest = self.read_known(arguments)
        if rest:
            raise ConfigError(f"{rest[0].partition('=')[0]} is not known here.\n{self.format_usage().strip()}")
        return given

    def read_known(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Reads the arguments that are known, and returns the others as they are."""
        return self.parse_known_args([f"--{a}" if self._is_option(a) else a for a in arguments])

    def _is_option(self, argument: str) -> bool:
        key, equals, _ = argument.partition("=")
        return bool(equals) and f"--{key}" in self._option_string_actions

    def error(self, message: str) -> NoReturn:
        """Raises what argparse complains of."""
        raise ConfigError(f"{message}.\n{self.format_usage().strip()}")


def perform(action: Callable[[], int | None], *, trouble: int = 1) -> int:
    """Does what a command is for; returns the exit code: 2 if the user's input is wrong, ``trouble`` if the rest is."""
    try:
        return action() or 0
    except SystemExit as end:  # argparse has printed the help
        return int(end.code or 0)
    except FedexpError as error:
        complain(error)
        return 2 if isinstance(error, ConfigError) else trouble


def complain(error: FedexpError) -> None:
    """Prints an error on the error stream, without anything that a terminal would obey."""
    text = "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in str(error))
    said = Text.assemble((type(error).__name__, "bold red"), f": {text}")
    open_console(stderr=True).print(said, soft_wrap=True)
