"""Event files for TensorBoard, in the run directory."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedexp.core.record import Record
from fedexp.errors import ConfigError
from fedexp.report.frames import settings
from fedexp.track import identity, pictures, series
from fedexp.track.base import RunCard
from fedexp.track.folder import fresh_folder

FOLDER = "tensorboard"


class TensorBoardTracker:
    """Writes scalars, histograms, settings and pictures to ``<run directory>/tensorboard/``, which it replaces.

    Rounds are steps, and the wall time is that of the run's own clock: so TensorBoard can draw any series over rounds
    and over hours, also if the events were written later.

    Args:
        histograms: Whether the accuracies over clients and classes are written as histograms.
        figures: Pictures that are written at the end.
    """

    def __init__(self, *, histograms: bool = True, figures: Sequence[str] = ("partition",)) -> None:
        pictures.check(figures, "tracker.tensorboard.figures")
        try:
            import tensorboard  # noqa: F401
        except ImportError as error:
            raise ConfigError('tracker=tensorboard needs a package: pip install "fedexp[tensorboard]"') from error
        self.histograms = histograms
        self.figures = tuple(figures)
        self._writer: Any = None
        self._card: RunCard
        self._classes: tuple[str, ...] = ()
        self._began = 0.0
        self._round = 0

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Begins an event file with what has happened so far."""
        from torch.utils.tensorboard import SummaryWriter

        self._card, self._classes = card, series.class_names(card.config)
        self._began = time.time() - (history[-1]["seconds"]["elapsed"] if history else 0.0)
        self._writer = SummaryWriter(str(fresh_folder(card, FOLDER)))
        self._writer.add_text("command", f"    {identity.command(card)}")
        for record in history:
            self.log(record)

    def log(self, record: Record) -> None:
        """Writes one evaluated round."""
        self._round = record["round"]
        when = {"global_step": self._round, "walltime": self._began + record["seconds"]["elapsed"]}
        for key, value in series.row(record, self._classes).items():
            self._writer.add_scalar(key, value, **when)
        for key, values in series.distributions(record) if self.histograms else ():
            self._writer.add_histogram(key, np.asarray(values), bins=series.edges(values), **when)
        self._writer.flush()

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Writes settings, result and pictures, and closes the file."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            self._settings(writer, series.summary(result))
            for name in self.figures if result else ():
                writer.add_image(f"figures/{name}", _pixels(pictures.picture(self._card.path, name)), self._round)
        finally:
            writer.close()

    def _settings(self, writer: Any, summary: Mapping[str, Any]) -> None:
        """Settings beside results, as TensorBoard's page of hyper-parameters shows them."""
        from torch.utils.tensorboard.summary import hparams

        numbers = {key: value for key, value in summary.items() if isinstance(value, int | float)}
        told = settings(self._card.config).items()
        flat = {key: value if isinstance(value, int | float | str) else str(value) for key, value in told}
        for event in hparams(flat, numbers):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(event)
        for key, value in numbers.items():
            writer.add_scalar(key, value, self._round)


def _pixels(png: bytes) -> Any:
    """A picture as TensorBoard takes it: channels, height, width."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).transpose(2, 0, 1)
