"""One Weights & Biases run per experiment, completed or rebuilt from the run directory's records."""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedexp.core.ranges import Project, Seconds, Tag
from fedexp.core.record import Record
from fedexp.errors import ConfigError, FedexpError
from fedexp.runs.names import MODEL
from fedexp.system.files import refuse_link
from fedexp.system.versions import DIRTY
from fedexp.track import identity, pictures, series
from fedexp.track.base import RunCard
from fedexp.track.wandb_login import has_key

if TYPE_CHECKING:
    from types import ModuleType

LOG = logging.getLogger(__name__)

Mode = Literal["auto", "online", "offline"]

GAVE_UP = "filestream: fatal error: "  # in the log of W&B's own process

QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_git": True,  # it would look at the current folder, also when a run of last year is synchronised
    "disable_code": True,
    "disable_job_creation": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


class WandbTracker:
    """Mirrors a run to W&B, online or into files.

    A record is a row, and a row is a record: so the number of rows that W&B has says which records it lacks. The last
    row waits for the end of the run, and takes pictures along. Rounds are the step metric and never the ``step`` of a
    log call, so any series can also be drawn against ``bytes/total`` or ``seconds/elapsed``. W&B cannot resume offline:
    there the earlier fragment is replaced. ``wandb sync`` uploads a fragment, but appends it to what is there.

    Args:
        project: W&B project.
        entity: Account or team; the account's default if None.
        mode: ``auto`` follows ``WANDB_MODE`` if it is set, is else online when an API key is at hand.
        tags: W&B tags of the run, besides those for paper, experiment, data set and partition.
        histograms: Whether the accuracies over clients and classes are logged as histograms.
        clients: Whether the table of clients is logged at the end.
        figures: Pictures that are logged at the end.
        model: Whether the server's model is uploaded at the end, as an artifact.
        system: Whether W&B measures this machine during the run: processors, memory, GPUs.
        patience: Seconds to wait for W&B, when the run begins and when it ends.
    """

    def __init__(
        self,
        project: Project = "fedexp",
        entity: Project | None = None,
        *,
        mode: Mode = "auto",
        tags: Sequence[Tag] = (),
        histograms: bool = True,
        clients: bool = True,
        figures: Sequence[str] = ("partition",),
        model: bool = False,
        system: bool = False,
        patience: Seconds = 60,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"tracker.wandb.mode is {mode!r}; it can be {', '.join(get_args(Mode))}.")
        if len(set(tags)) < len(tags):
            raise ConfigError(f"tracker.wandb.tags={list(tags)} names a tag twice. Name each once.")
        pictures.check(figures, "tracker.wandb.figures")
        package = _package()
        if mode == "online" and not has_key(package):
            raise ConfigError(
                "tracker.wandb.mode=online needs a W&B API key: run `wandb login` or set WANDB_API_KEY, "
                "or use tracker.wandb.mode=offline and upload later with `python -m fedexp.track sync wandb`."
            )
        self.project = project
        self.entity = entity
        self.mode = mode
        self.tags = tuple(tags)
        self.histograms = histograms
        self.clients = clients
        self.figures = tuple(figures)
        self.model = model
        self.system = system
        self.patience = patience
        self._run: Any = None
        self._card: RunCard
        self._classes: tuple[str, ...] = ()
        self._known: set[str] = set()  # series that were declared
        self._there = 0  # rows that W&B has
        self._told = 0  # records that we were told of
        self._last: dict[str, Any] | None = None  # the row of the last round

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens the W&B run and brings it up to date with ``history``."""
        wandb = _package()
        _forget(card)
        self._card, self._classes = card, series.class_names(card.config)
        self._run = self._open(wandb, card)
        self._there = self._run.starting_step
        self._run.define_metric(series.ROUND)
        self._run.define_metric("*", step_metric=series.ROUND)
        for record in history:
            self.log(record)

    def log(self, record: Record) -> None:
        """Logs one evaluated round, unless W&B has it already."""
        self._told += 1
        if self._told <= self._there:
            return
        row: dict[str, Any] = series.row(record, self._classes)
        for key in row.keys() - self._known:
            self._define(key)
        if self.histograms:
            row |= {key: _histogram(values) for key, values in series.distributions(record)}
        if record["round"] >= self._card.rounds:
            self._last = row
        else:
            self._run.log(row)

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Writes the result into the W&B summary and closes the run; without a result it is marked as failed."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            if self._last is not None:
                run.log(self._last | (self._pictures() if result else {}))
            run.summary.update(series.summary(result))
            if result:
                self._log_artifacts(run)
        finally:
            run.finish(exit_code=int(result is None))
        _demand_delivery(Path(run.dir).parent)

    # ------------------------------------------------------------ opening
    def _open(self, wandb: ModuleType, card: RunCard) -> Any:
        mode = self._resolved(wandb, card)
        return wandb.init(
            project=self.project,
            entity=self.entity,
            id=card.run,
            name=identity.title(card),
            group=card.name,
            job_type=identity.method(card),
            tags=list(dict.fromkeys([*identity.tags(card), *self.tags])),
            notes=identity.command(card),
            config={**card.config, "plan": card.plan},
            dir=str(card.path),
            mode=mode,
            resume="allow" if mode == "online" else None,  # ignored offline
            reinit="create_new",
            settings=self._settings(wandb, card),
        )

    def _settings(self, wandb: ModuleType, card: RunCard) -> Any:
        asked = {
            **QUIET,
            "x_disable_stats": not self.system,
            "git_commit": card.commit.removesuffix(DIRTY) or None,
            "init_timeout": self.patience,
            "finish_timeout": self.patience,
            "finish_timeout_raises": True,
        }
        known = wandb.Settings.model_fields  # those that begin with x_ come and go
        return wandb.Settings(**{key: value for key, value in asked.items() if key in known})

    def _resolved(self, wandb: ModuleType, card: RunCard) -> str:
        if self.mode == "offline":
            return "offline"
        if self.mode == "auto" and os.environ.get("WANDB_MODE"):
            return os.environ["WANDB_MODE"]
        if has_key(wandb):
            return "online"
        upload = shlex.join(["python", "-m", "fedexp.track", "sync", "wandb", str(card.path)])
        LOG.warning("No W&B API key: recorded offline. Upload with: %s", upload)
        return "offline"

    # ------------------------------------------------------------ what rows are made of
    def _define(self, key: str) -> None:
        self._known.add(key)
        if best := series.BEST.get(key.rpartition("/")[2]):
            self._run.define_metric(key, step_metric=series.ROUND, summary=f"{best},last")

    def _pictures(self) -> dict[str, Any]:
        wandb, path = _package(), self._card.path
        return {f"figures/{name}": _image(wandb, pictures.picture(path, name)) for name in self.figures}

    def _log_artifacts(self, run: Any) -> None:
        """Uploads the table of clients and the model, which W&B knows by their content: the same is not kept twice."""
        if self.clients:
            columns, rows = series.client_table(self._card.path)
            run.summary["clients"] = _package().Table(columns=columns, data=rows, allow_mixed_types=True)
        if self.model:
            run.log_artifact(str(self._card.path / MODEL), name=f"model-{self._card.run}", type="model")


def _image(wandb: ModuleType, png: bytes) -> Any:
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(png)))


def _histogram(values: list[float]) -> Any:
    import wandb

    return wandb.Histogram(np_histogram=np.histogram(values, bins=series.edges(values)))


def _package() -> ModuleType:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError('tracker=wandb needs the W&B package: pip install "fedexp[wandb]"') from error
    wandb.setup(wandb.Settings(silent=True))  # or it would write into our display
    module: ModuleType = wandb
    return module


def _demand_delivery(fragment: Path) -> None:
    """Raises ``FedexpError`` if W&B has given up sending, of which it tells its log only."""
    log = fragment / "logs" / "debug-internal.log"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    for line in (line for line in lines if GAVE_UP in line):
        raise FedexpError(f"W&B did not take the rows: {line.partition(GAVE_UP)[2][:200]}")


def _forget(card: RunCard) -> None:
    """Deletes what W&B has kept of this run on disk; all of it is in the run directory's records."""
    folder = card.path / "wandb"
    refuse_link(folder)
    for fragment in folder.glob(f"*run-*-{card.run}"):
        refuse_link(fragment)
        shutil.rmtree(fragment)
