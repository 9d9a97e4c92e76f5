"""One Weights & Biases run per experiment, rebuilt from the run directory's records whenever a run is resumed."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedexp.core.ranges import Project, Tag
from fedexp.core.record import Record
from fedexp.errors import ConfigError
from fedexp.partition.heatmap import heatmap, ownership
from fedexp.system.files import refuse_link
from fedexp.track.base import RunCard
from fedexp.track.wandb_login import has_key

if TYPE_CHECKING:
    from types import ModuleType

LOG = logging.getLogger(__name__)

Mode = Literal["auto", "online", "offline"]

QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
SUMMARIES = {"accuracy": "max,last", "before": "max,last", "owned": "max,last", "loss": "min,last"}
CAPTION = "rows: classes from 0, columns: clients from 0; grey: not owned, dark: many training samples"


class WandbTracker:
    """Mirrors a run to W&B, online or into files that ``wandb sync`` uploads later.

    Rounds are the step metric and never the ``step`` of a log call, so any series can also be drawn against
    ``bytes/total`` or ``seconds/elapsed``. W&B cannot resume offline: there the earlier fragment is replaced.

    Args:
        project: W&B project.
        entity: Account or team; the account's default if None.
        mode: ``auto`` follows ``WANDB_MODE`` if it is set, is else online when an API key is at hand.
        tags: W&B tags of the run.
        histograms: Whether the accuracies over clients and classes are logged as histograms.
    """

    def __init__(
        self,
        project: Project = "fedexp",
        entity: Project | None = None,
        *,
        mode: Mode = "auto",
        tags: Sequence[Tag] = (),
        histograms: bool = True,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"tracker.mode is {mode!r}; it can be {', '.join(get_args(Mode))}.")
        if len(set(tags)) < len(tags):
            raise ConfigError(f"tracker.tags={list(tags)} names a tag twice. Name each once.")
        package = _package()
        if mode == "online" and not has_key(package):
            raise ConfigError(
                "tracker.mode=online needs a W&B API key: run `wandb login` or set WANDB_API_KEY, "
                "or use tracker.mode=offline and upload later with `wandb sync`."
            )
        self.project = project
        self.entity = entity
        self.mode = mode
        self.tags = tuple(tags)
        self.histograms = histograms
        self._run: Any = None
        self._known: set[str] = set()
        self._last = 0
        self._extra: dict[str, Any] = {}  # joins the first row, so that rows and rounds stay one to one

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens the W&B run and brings it up to date with ``history``."""
        wandb = _package()
        _forget(card)
        self._run = self._open(wandb, card)
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        self._last = int(self._run.summary.get("round") or 0)
        if card.partition:
            self._picture(wandb, card.partition)
        for record in history:
            self.log(record)

    def log(self, record: Record) -> None:
        """Logs one evaluated round, unless W&B has it already."""
        if record["round"] <= self._last:
            return
        row = dict(scalars(record))
        if {"up", "down"} <= set(record.get("bytes", ())):
            row["bytes/total"] = record["bytes"]["up"] + record["bytes"]["down"]
        for key in row.keys() - self._known:
            self._define(key)
        if self.histograms:
            row |= {key: _histogram(values) for key, values in lists(record)}
        self._run.log(row | self._extra)
        self._extra = {}
        self._last = record["round"]

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Writes the result into the W&B summary and closes the run; without a result it is marked as failed."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.summary.update({"status": "stopped"} if result is None else _summary(result))
        finally:
            run.finish(exit_code=int(result is None))

    def _open(self, wandb: ModuleType, card: RunCard) -> Any:
        mode = self._resolved(wandb, card)
        try:
            return self._init(wandb, card, mode)
        except wandb.errors.CommError as error:
            if mode == "offline" or self.mode != "auto":
                raise ConfigError(
                    f"W&B cannot be reached ({_line(error)}). Use tracker.mode=offline and upload later."
                ) from error
            LOG.warning("W&B cannot be reached (%s); this run is recorded offline in %s.", _line(error), card.path)
            return self._init(wandb, card, "offline")

    def _init(self, wandb: ModuleType, card: RunCard, mode: str) -> Any:
        known = wandb.Settings.model_fields
        return wandb.init(
            project=self.project,
            entity=self.entity,
            id=card.run,
            name=_title(card),
            group=card.name,
            job_type=_algorithm(card),
            tags=self.tags,
            config={**card.config, "plan": card.plan},
            dir=str(card.path),
            mode=mode,
            resume="allow" if mode == "online" else None,  # ignored offline
            reinit="create_new",
            settings=wandb.Settings(**{key: value for key, value in QUIET.items() if key in known}),
        )

    def _resolved(self, wandb: ModuleType, card: RunCard) -> str:
        if self.mode == "offline":
            return "offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE"):
            return os.environ["WANDB_MODE"]
        if has_key(wandb):
            return "online"
        LOG.warning("No W&B API key: recorded offline. Upload with: wandb sync %s/wandb/offline-run-*", card.path)
        return "offline"

    def _picture(self, wandb: ModuleType, partition: Sequence[Sequence[int]]) -> None:
        self._run.summary.update({f"partition/{key}": value for key, value in ownership(partition).items()})
        if self._last == 0:
            self._extra = {"partition/heatmap": wandb.Image(heatmap(partition), caption=CAPTION)}

    def _define(self, key: str) -> None:
        self._known.add(key)
        summary = SUMMARIES.get(key.rpartition("/")[2])
        if summary:
            self._run.define_metric(key, step_metric="round", summary=summary)


def scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields the numbers of a record under ``block/metric`` names; what is absent or null stays absent."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{key}", value


def lists(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[float]]]:
    """Yields the non-empty lists of numbers of a record, without their gaps."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from lists(value, f"{prefix}{key}/")
        elif isinstance(value, list | tuple):
            numbers = [float(x) for x in value if isinstance(x, int | float) and math.isfinite(x)]
            if numbers:
                yield f"{prefix}{key}", numbers


def _histogram(values: list[float]) -> Any:
    import wandb

    # Bins that do not move make the rounds comparable; accuracies live in [0, 1].
    span = (min(0.0, *values), max(1.0, *values))
    return wandb.Histogram(np_histogram=np.histogram(values, bins=20, range=span))


def _summary(result: Mapping[str, Any]) -> dict[str, Any]:
    # Under a name of their own: a round's ``std`` is over clients, the result's over the last rounds.
    told = {key: value for key, value in result.items() if key != "checksums"}
    return {"status": result.get("status")} | dict(scalars(told, "result/"))


def _package() -> ModuleType:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError('tracker=wandb needs the W&B package: pip install "fedexp[wandb]"') from error
    module: ModuleType = wandb
    return module


def _forget(card: RunCard) -> None:
    """Deletes the offline fragments of this run; all they held is in the run directory's records."""
    folder = card.path / "wandb"
    refuse_link(folder)
    for fragment in folder.glob(f"offline-run-*-{card.run}"):
        refuse_link(fragment)
        shutil.rmtree(fragment)


def _title(card: RunCard) -> str:
    choices = card.config.get("choices") or {}
    parts = [_algorithm(card), *(choices.get(group) for group in ("data", "partition"))]
    if "seed" in card.config:
        parts.append(f"s{card.config['seed']}")
    return "/".join(str(part) for part in parts if part) or card.run


def _algorithm(card: RunCard) -> str | None:
    choice = (card.config.get("choices") or {}).get("algo")
    return "+".join(choice) if isinstance(choice, list | tuple) else choice


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
