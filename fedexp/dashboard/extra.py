"""The packages of the extra ``dashboard``, which nothing else in fedexp needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedexp.errors import ConfigError


def workspaces() -> Any:
    """What workspaces are made of."""
    return _module("wandb_workspaces.workspaces")


def reports() -> Any:
    """What reports and panels are made of."""
    return _module("wandb_workspaces.reports.v2")


def expressions() -> Any:
    """What runs are chosen and grouped by."""
    return _module("wandb_workspaces.expr")


def wandb() -> Any:
    """W&B itself."""
    return _module("wandb")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as cause:
        raise ConfigError(
            f"Dashboards need the package {name.partition('.')[0].replace('_', '-')}, which is not installed: "
            'pip install "fedexp[dashboard]"'
        ) from cause
