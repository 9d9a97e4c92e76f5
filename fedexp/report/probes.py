"""What probes have seen: their numbers as frames, and their arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.extra import pandas
from fedexp.report.load import FoundRun, Runs
from fedexp.report.measure import cells, in_order
from fedexp.runs.array_files import Arrays, observed_arrays
from fedexp.runs.observations import SETTINGS
from fedexp.terminal.numbers import count

if TYPE_CHECKING:
    import pandas as pd

NOT_NUMBERS = (SETTINGS, "arrays")  # names of rows that tell of the probes themselves
QUANTITIES = {  # first words of numbers, and what they are of
    "norm": "norm of vectors",
    "gradient": "norm of gradient",
    "distance": "distance of vectors",
    "angle": "angle (°)",
    "missing": "angle (°)",
    "centred": "centred angle (°)",
    "probability": "probability of the true class",
    "variance": "variance of eigenvalues",
    "pooled": "variance of eigenvalues, pooled",
    "contrast": "cosine, alike less different",
    "pulling": "norm of the force",
    "direct": "norm of the force",
    "indirect": "norm of the force",
    "seconds": "local training (s)",
    "stored": "stored by a client (MB)",
    "spread": "spread within classes, relative",
}
PARTS = {  # last words of numbers: of which classes
    "oo": "observed–observed",
    "om": "observed–missing",
    "mm": "missing–missing",
    "between": "observed–missing",
    "missing": "missing",
    "observed": "observed",
    "pulling": "pulling",
    "direct": "direct pushing",
    "indirect": "indirect pushing",
}
MODELS = {"received": "downloaded", "epoch": "", "steps": "", "step": "", "round": "", "matrix": ""}  # else as it is
FACTORS = {"stored": 1e-6}


@dataclass(frozen=True)
class Number:
    """A number of a probe by its full name, ``classifier.trained.norm_missing``: probe, name of its rows, value."""

    of: str

    @property
    def probe(self) -> str:
        """The probe that writes it."""
        return self.of.partition(".")[0]

    @cached_property
    def _words(self) -> tuple[str, str]:
        name, _, key = self.of.partition(".")[2].partition(".")
        return name, key

    @property
    def model(self) -> str:
        """Of which model it is, in words; empty if that is clear."""
        return MODELS.get(self._words[0], self._words[0])

    @property
    def quantity(self) -> str:
        """What it is, with the unit."""
        key = self._words[1]
        return QUANTITIES.get(key.partition("_")[0], key.replace("_", " "))

    @property
    def part(self) -> str:
        """Of which classes it is; empty if of all."""
        return PARTS.get(self._words[1].rpartition("_")[2], "")

    def values(self, runs: Runs) -> pd.DataFrame:
        """``run``, ``round``, ``client``, ``epoch``, ``step`` and ``value``, a row for each time it was observed.

        Raises:
            ConfigError: If no finished run has it; with the probe to run, or the nearest name.
        """
        name, key = self._words
        rows = seen(runs, self.probe)
        factor = FACTORS.get(key, 1.0)
        own = [
            {"run": run, "round": round_, "client": client, "epoch": epoch, "step": step, "value": factor * values[key]}
            for run, round_, client, epoch, step, of, values in zip(
                *(rows[column] for column in ("run", "round", "client", "epoch", "step", "name", "values")), strict=True
            )
            if of == name and isinstance(values.get(key), int | float)
        ]
        if not own:
            raise ConfigError(f"{self.of}: no finished run has such a number. {nearest(self.of, names(rows))}")
        return pandas().DataFrame(own)


def names(rows: pd.DataFrame) -> list[str]:
    """The full names of all numbers in rows of probes."""
    found = zip(rows["probe"], rows["name"], rows["values"], strict=True)
    return in_order([
        f"{probe}.{of}.{key}"
        for probe, of, values in found
        if of not in NOT_NUMBERS
        for key, value in values.items()
        if isinstance(value, int | float)
    ])  # fmt: skip


def seen(runs: Runs, probe: str) -> pd.DataFrame:
    """The rows of a probe in finished runs.

    Raises:
        ConfigError: If it has observed none of them.
    """
    rows = runs.done.probes
    own = rows[(rows["probe"] == probe) & ~rows["name"].isin(NOT_NUMBERS)]
    if own.empty:
        raise unobserved(runs, probe)
    missing = {column: np.nan for column in ("epoch", "step") if column not in own}
    return own.assign(**missing)


def unobserved(runs: Runs, probe: str) -> ConfigError:
    """Says which probe to run."""
    others = [name for name in runs.done.probes["probe"].dropna().unique() if name != probe]
    known = f" They were observed by {', '.join(others)}." if others else ""
    asked = f"'probe=[{','.join([*others, probe])}]'" if others else f"probe={probe}"
    return ConfigError(
        f"No finished run was observed by the probe {probe}, which this figure is drawn from.{known} Run with {asked}; "
        "runs that are finished need force=true too, and give the same numbers again."
    )


def settings(runs: Runs, probe: str) -> Mapping[str, Any]:
    """With which settings a probe has observed these runs; of several, those of the first run."""
    rows = runs.done.probes
    own = rows[(rows["probe"] == probe) & (rows["name"] == SETTINGS)]
    return next((values for values in own["values"] if values), {})


def without(runs: Runs, found: Iterable[str]) -> str:
    """What a caption says of finished runs that were not observed; empty if there are none."""
    left = {run.name for run in runs.done.found} - set(found)
    return f" {count(len(left), 'run')} not observed, left out." if left else ""


def rounds_with_arrays(runs: Runs, run: FoundRun) -> list[int]:
    """The rounds of a run in which probes have written arrays."""
    rows = runs.done.probes
    own = rows[(rows["run"] == run.name) & (rows["name"] == "arrays")]
    return sorted(map(int, own["round"]))


def arrays(run: FoundRun, round_: int, probe: str) -> dict[str, Arrays]:
    """What a probe has written as arrays in a round, by the number of the client or ``server``, and by name."""
    found: dict[str, Arrays] = {}
    for key, array in observed_arrays(run.path, round_).items():
        of, who, name = key.split("/", maxsplit=2)
        if of == probe:
            found.setdefault(who, {})[name] = array
    return found


def first_of_each(runs: Runs, by: Sequence[str], over: str = "seed") -> dict[str, FoundRun]:
    """By method, the finished run with the smallest seed; for figures that show a single run.

    Raises:
        ConfigError: If runs of a method differ in more than the seed.
    """
    told = cells(runs.done, runs.done.config[["run"]], {"method": by}, over).sort_values("over")
    names = {method: own["run"].iloc[0] for method, own in told.groupby("method")}
    by_name = {run.name: run for run in runs.done.found}
    return {method: by_name[names[method]] for method in in_order(list(names))}
