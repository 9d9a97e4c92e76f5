"""Any logger of Lightning as a tracker: MLflow, Comet, Neptune, CSV files, and those that other packages bring."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fedexp.config import targets
from fedexp.config.suggest import nearest
from fedexp.core.record import Record
from fedexp.errors import ConfigError
from fedexp.report.frames import settings
from fedexp.track import identity, series
from fedexp.track.base import RunCard
from fedexp.track.folder import fresh_folder

FOLDER = "lightning"
KEY = "tracker.lightning.logger"


class LightningTracker:
    """Hands records to a logger of Lightning, with rounds as steps, each of them once.

    A logger that writes files does so in ``<run directory>/lightning/``, unless ``save_dir`` says otherwise; that
    folder is replaced when the run is mirrored again. A service that keeps a list of runs gets a new one then.

    Args:
        logger: The logger's class, as ``_target_``, and its settings.
    """

    def __init__(self, logger: Mapping[str, Any]) -> None:
        self._make, self._settings = _loaded(logger)
        self._logger: Any = None
        self._card: RunCard
        self._classes: tuple[str, ...] = ()
        self._last: dict[str, float] = {}  # the row of the last round, which takes the result along

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Makes the logger, and logs what has happened so far."""
        self._card, self._classes = card, series.class_names(card.config)
        known = inspect.signature(self._make).parameters
        usual = {"save_dir": str(fresh_folder(card, FOLDER))} if "save_dir" in known else {}
        names = {"run_name": identity.title(card), "experiment_name": card.name}
        usual |= {key: value for key, value in names.items() if key in known}
        self._logger = self._make(**usual | self._settings)
        about = {"run": card.run, "command": identity.command(card), "commit": card.commit}
        self._logger.log_hyperparams({**settings(card.config), **about})
        for record in history:
            self.log(record)

    def log(self, record: Record) -> None:
        """Logs one evaluated round."""
        row = series.row(record, self._classes)
        if record["round"] >= self._card.rounds:
            self._last = row
        else:
            self._logger.log_metrics(row, step=record["round"])
            self._logger.save()

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Logs the result and closes the logger."""
        logger, self._logger = self._logger, None
        if logger is not None:
            numbers = {k: v for k, v in series.summary(result).items() if isinstance(v, int | float)}
            if last := self._last | numbers:
                logger.log_metrics(last, step=self._card.rounds)
            logger.finalize("failed" if result is None else "success")


def _loaded(node: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The logger's class and its settings.

    Raises:
        ConfigError: If it cannot be imported, is no logger, or does not take the settings.
    """
    target, given = node.get("_target_"), {k: v for k, v in node.items() if k != "_target_"}
    if why := targets.refusal(target, "logger"):
        raise ConfigError(f"{KEY}._target_: {target!r} {why}.")
    made = targets.load(str(target))
    if not hasattr(made, "log_metrics"):
        raise ConfigError(f"{KEY}._target_: {target} is not a logger of Lightning: it has no log_metrics.")
    known = inspect.signature(made).parameters
    is_open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    for key in () if is_open else given:
        if key not in known:
            raise ConfigError(f"{KEY}.{key} is not a setting of {target}. {nearest(key, list(known))}")
    return made, given
