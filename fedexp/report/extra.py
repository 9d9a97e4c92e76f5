"""The packages of the extra ``report``, which nothing else in fedexp needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedexp.errors import ConfigError


def pandas() -> Any:
    """The module of that name."""
    return _module("pandas", "Tables and data frames of runs need")


def altair() -> Any:
    """The module of that name."""
    return _module("altair", "Figures need")


def vl_convert() -> Any:
    """The module that turns specifications of figures into files."""
    return _module("vl_convert", "Figures need")


def jinja2() -> Any:
    """The module of that name."""
    return _module("jinja2", "Reports need")


def _module(name: str, who: str) -> Any:
    try:
        return import_module(name)
    except ImportError as cause:
        raise ConfigError(f'{who} the package {name}, which is not installed: pip install "fedexp[report]"') from cause
