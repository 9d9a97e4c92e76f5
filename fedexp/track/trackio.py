"""A run in Trackio's local data base, which ``trackio show`` displays without an account."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from fedexp.core.ranges import Project
from fedexp.core.record import Record
from fedexp.errors import ConfigError, FedexpError
from fedexp.report.frames import settings
from fedexp.track import identity, series
from fedexp.track.base import RunCard

if TYPE_CHECKING:
    from types import ModuleType


class TrackioTracker:
    """Writes a run when it ends, and in place of what Trackio has of it.

    All runs of a project share a data base, which is locked while one of them writes: so each writes once.

    Args:
        project: Trackio's project.
    """

    def __init__(self, project: Project = "fedexp") -> None:
        _package()
        self.project = project
        self._card: RunCard | None = None
        self._records: list[Record] = []

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Remembers what has happened so far."""
        self._card, self._records = card, list(history)

    def log(self, record: Record) -> None:
        """Remembers one evaluated round."""
        self._records.append(record)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Writes the run, if anything has happened in it."""
        card, self._card = self._card, None
        if card is None or not self._records:
            return
        classes = series.class_names(card.config)
        rows = {record["round"]: series.row(record, classes) for record in self._records}
        rows[max(rows)] |= series.summary(result)
        about = {"run": card.run, "command": identity.command(card), "commit": card.commit, "tags": identity.tags(card)}
        trackio = _package()
        with _strict():
            for earlier in trackio.Api().runs(self.project) if _has(trackio, self.project) else ():
                if earlier.name.startswith(f"{card.run} "):
                    earlier.delete()
            run = trackio.init(
                self.project, f"{card.run} {identity.title(card)}", card.name, config=settings(card.config) | about,
                auto_log_gpu=False, auto_log_cpu=False, embed=False,
            )  # fmt: skip
            for round_, row in rows.items():
                run.log(row, step=round_)
            trackio.finish()


@contextmanager
def _strict() -> Iterator[None]:
    """Keeps Trackio from printing; what it warns of and goes on is an error."""
    with warnings.catch_warnings(record=True) as told, redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        yield
    troubles = [str(each.message) for each in told if issubclass(each.category, UserWarning)]
    if troubles:
        raise FedexpError(troubles[0])


def _has(trackio: ModuleType, project: str) -> bool:
    try:
        return bool(list(trackio.Api().runs(project)))
    except ValueError:  # there is no such project yet
        return False


def _package() -> ModuleType:
    try:
        import trackio
    except ImportError as error:
        raise ConfigError('tracker=trackio needs the Trackio package: pip install "fedexp[trackio]"') from error
    module: ModuleType = trackio
    return module
