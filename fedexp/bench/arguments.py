"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
