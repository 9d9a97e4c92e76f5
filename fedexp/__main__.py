"""``python -m fedexp``, and the command ``fedexp``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Runs the command line. Until it has been imported, Ctrl-C and SIGTERM end the process without a word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda n, _: os._exit(128 + n))
    from fedexp.errors import LimitError
    from fedexp.system import limits

    limits.warn()
    try:
        with limits.explained():
            from fedexp.cli import main as command

            command()
    except LimitError as error:
        sys.exit(f"LimitError: {error}")


if __name__ == "__main__":
    main()
