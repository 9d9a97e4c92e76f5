"""What the benchmarks' command lines have in common."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fedexp.config.signatures import signature
from fedexp.config.values import describe, wanted
from fedexp.errors import ConfigError


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def folder(text: str) -> Path:
    """A folder that is there, or can be made: it is better to know before the measurement than after it."""
    path = Path(text)
    there = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} is not a folder that can be written to")
    return path


LOOP_OPTIONS = {"device": "accelerator", "precision": "precision", "compile": "compile"}  # settings of the loop

DEFAULTS = {"device": "auto", "precision": "32-true", "compile": False}


def add_loop_options(parser: argparse.ArgumentParser) -> None:
    """Lets a benchmark run on another device or in another precision."""
    parser.add_argument("--device", help="loop.accelerator of fedexp, and of the raw loop")
    parser.add_argument("--precision", help="loop.precision of fedexp; the raw loop has 32 bits")
    parser.add_argument("--compile", action="store_true", help="loop.compile=true for fedexp; the raw loop is eager")
    parser.set_defaults(**DEFAULTS)


def loop_overrides(asked: argparse.Namespace) -> list[str]:
    """The overrides that these options stand for, without those that are as they would be anyway.

    Raises:
        ConfigError: If one of them is nothing that a loop takes.
    """
    hints = signature("fedexp.client.loops.FabricLoop") or {}
    for option, setting in LOOP_OPTIONS.items():
        if wanted(getattr(asked, option), hints[setting]):
            raise ConfigError(f"--{option} must be {describe(hints[setting])}, not {getattr(asked, option)}")
    given = {option: getattr(asked, option) for option in LOOP_OPTIONS}
    return [f"loop.{LOOP_OPTIONS[o]}={str(value).lower()}" for o, value in given.items() if value != DEFAULTS[o]]
