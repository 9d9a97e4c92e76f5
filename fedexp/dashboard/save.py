"""Saving to W&B, in place of what was saved before."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedexp.dashboard.extra import wandb
from fedexp.errors import ConfigError, FedexpError
from fedexp.track.several import first_line
from fedexp.track.wandb_login import has_key


def demand_key() -> None:
    """Raises ``ConfigError`` if there is no account to save to."""
    if not has_key(wandb()):
        raise ConfigError(
            "A dashboard needs a W&B API key: run `wandb login` or set WANDB_API_KEY; dry=true needs none."
        )


def default_entity() -> str:
    """The account's own."""
    with _told():
        return str(wandb().Api().default_entity)


def demand_project(entity: str, project: str) -> None:
    """Raises ``ConfigError`` if there is no such project, since a dashboard of nothing would be made with it."""
    with _told():
        known = [each.name for each in wandb().Api().projects(entity)]
    if project not in known:
        raise ConfigError(
            f"project={project}: {entity} has no such project. Mirror runs to it first: "
            f"python -m fedexp.track sync wandb multirun/NAME {shlex.quote(f'project={project}')}"
        )


def save_workspace(made: Any) -> str:
    """Saves a workspace; returns its address."""
    from wandb_workspaces.workspaces.internal import View

    with _told():
        try:
            known = View.from_name(made.entity, made.project, made._internal_name)  # noqa: SLF001
        except ValueError:  # there is none of this name
            known = None
        if known is not None:
            made._internal_id = known.id  # noqa: SLF001
        made.save()
        return str(made.url)


def save_reports(entity: str, project: str, made: Sequence[Any]) -> Iterator[str]:
    """Saves reports, each in place of the one of the same title; yields their addresses."""
    with _told():
        known = {each.display_name: each.id for each in wandb().Api().reports(f"{entity}/{project}")} if made else {}
    for report in made:
        with _told():
            report.id = known.get(report.title, "")
            report.save()
            yield str(report.url)


@contextmanager
def _told() -> Iterator[None]:
    """Tells what W&B raises in a line."""
    try:
        yield
    except (ConfigError, GeneratorExit):
        raise
    except Exception as error:  # of the package, the network, the server
        raise FedexpError(f"W&B did not take it: {first_line(error)}") from error
