"""``fedexp.load(folder)``: the runs below a folder as data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedexp.config.suggest import nearest
from fedexp.core.record import Record
from fedexp.errors import ConfigError, FedexpError
from fedexp.report import frames
from fedexp.report.extra import pandas
from fedexp.runs.directory import RunDir
from fedexp.runs.names import CLIENTS, LEDGER, PLAN
from fedexp.runs.status import survey
from fedexp.system import files
from fedexp.terminal.numbers import DASH

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
PROBES = "probes.jsonl"
PROBE_COLUMNS = ("run", "round", "client", "probe", "name", "values")


@dataclass(frozen=True)
class FoundRun:
    """A run on disk."""

    name: str  # its path below the folder, by which all frames know it
    path: Path
    status: str  # done | running | partial | failed | damaged | missing
    note: str = ""
    rounds: str = ""  # 3/10
    command: str = ""  # to go on with; empty where there is none


@dataclass(frozen=True)
class Runs:
    """Runs with their data frames, which are read when they are first asked for.

    Each frame has the column ``run``. A file that cannot be read is told in ``complaints``, and the rest is read.
    """

    found: tuple[FoundRun, ...]
    complaints: dict[str, str] = field(default_factory=dict, compare=False)  # by file
    max_rounds: int | None = None  # so many of the evaluated rounds are in ``rounds`` and ``classes``; None: all
    chosen_from: Runs | None = field(default=None, repr=False, compare=False)  # whose settings are asked for here too

    # ------------------------------------------------------------ frames
    @cached_property
    def status(self) -> pd.DataFrame:
        """One row per run: how it stands, and what is wrong with it."""
        rows = [{"run": r.name, "status": r.status, "path": str(r.path), "note": r.note} for r in self.found]
        return _frame(rows, ("run", "status", "path", "note"))

    @cached_property
    def config(self) -> pd.DataFrame:
        """One row per run: its status, and all settings with their dotted names. ``algo``, ``data``, … are choices.

        Runs that were chosen from others have the columns of those, whether or not one of them has such a setting.
        """
        read = _frame(
            self._each(lambda run: [{"status": run.status, **frames.settings(_config(run))}]), ("run", "status")
        )
        return read if self.chosen_from is None else read.reindex(columns=self.chosen_from.config.columns)

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per finished run: the numbers of result.json with their dotted names."""
        return _frame(self._each(lambda run: [frames.numbers(self._result(run))], done=True), ("run",))

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per run and evaluated round: the numbers of metrics.jsonl with their dotted names."""
        return _frame(self._each(lambda run: map(frames.numbers, self._records(run))), ("run", "round"))

    @cached_property
    def classes(self) -> pd.DataFrame:
        """One row per run, evaluated round, goal and class: the accuracy."""
        read = self._each(lambda run: (row for record in self._records(run) for row in frames.by_class(record)))
        return _frame(read, ("run", "round", "goal", "class", "accuracy"))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The rows of clients.csv."""
        return frames.typed(_frame(self._each(lambda run: RunDir(run.path).rows(CLIENTS)), ("run", "round", "client")))

    @cached_property
    def final_clients(self) -> pd.DataFrame:
        """One row per finished run and client that was trained and tested after the last round: the accuracy."""
        return _frame(
            self._each(lambda run: frames.final_clients(self._result(run)), done=True), ("run", "client", "accuracy")
        )

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """The rows of ledger.csv."""
        columns = ("run", "round", "client", "direction", "name", "bytes")
        return frames.typed(_frame(self._each(lambda run: RunDir(run.path).rows(LEDGER)), columns))

    @cached_property
    def probes(self) -> pd.DataFrame:
        """What probes have written; empty if there were none."""
        return _frame(self._each(_probe_rows), PROBE_COLUMNS)

    def partition(self, run: FoundRun) -> list[list[int]]:
        """Training samples by client and class, as the plan has them."""
        counts: list[list[int]] = files.read_json(run.path / PLAN)["partition"]["counts"]
        return counts

    def _records(self, run: FoundRun) -> list[Record]:
        return frames.thinned(RunDir(run.path).records(), self.max_rounds)

    def _result(self, run: FoundRun) -> Mapping[str, Any]:
        return RunDir(run.path).result() or {}

    def _each(self, read: Callable[[FoundRun], Iterable[Mapping[str, Any]]], *, done: bool = False) -> Iterator[Row]:
        """The rows of all runs; of a run with a file that cannot be read there are none, and it is told."""
        for run in self.found:
            if run.status in ("missing", *(("damaged", "failed", "partial", "running") if done else ())):
                continue
            try:
                rows = list(read(run))
            except FedexpError as damage:
                self.complaints[run.name] = str(damage)
            else:
                yield from ({"run": run.name, **row} for row in rows)

    # ------------------------------------------------------------ choosing
    @cached_property
    def done(self) -> Runs:
        """The finished ones."""
        return self.only(run.name for run in self.found if run.status == "done")

    def where(self, wanted: Mapping[str, Sequence[str]]) -> Runs:
        """The runs that have one of the values of each setting, written as on the command line; null is none.

        Raises:
            ConfigError: If there is no such setting, or no such run; with the nearest name, or the values there are.
        """
        config = self.config
        for key, values in wanted.items():
            own = config[self.setting(key)]
            if unknown := [text for text in values if not any(frames.same(value, text) for value in own)]:
                written = {"null" if text == DASH else text for text in own.map(frames.written)}
                there = sorted(written, key=frames.natural)
                raise ConfigError(f"{key}={unknown[0]}: no run has this value. {nearest(unknown[0], there)}")
            config = config[[any(frames.same(value, text) for text in values) for value in own]]
        if config.empty:
            chosen = " ".join(f"{key}={','.join(values)}" for key, values in wanted.items())
            raise ConfigError(f"{chosen}: no run has all of these settings. Leave one out.")
        return self.only(config["run"])

    def setting(self, key: str) -> str:
        """The key, if runs have such a setting.

        Raises:
            ConfigError: With the nearest one, if they have not.
        """
        if key not in self.config.columns:
            raise ConfigError(f"{key}: no run has such a setting. {nearest(key, list(self.config.columns[2:]))}")
        return key

    def differing(self, names: Iterable[str]) -> list[str]:
        """The settings in which some runs differ.

        Where choices differ, not those that only runs of one choice have; and where methods do, not those that
        follow from the method: with algo=feddf comes public=100.
        """
        some = self.config[self.config["run"].isin(list(names))].drop(columns=["run", "status"])
        values = {key: set(some[key].map(frames.written)) for key in some.columns}
        for key in frames.brought_by(some, "algo"):
            values[key] = set()

        def differs(key: str) -> bool:
            group = key.partition(".")[0]
            other_choice = group != key and len(values.get(group, ())) > 1
            return len(values[key] - {DASH} if other_choice else values[key]) > 1

        return [key for key in values if differs(key)]

    def only(self, names: Iterable[str]) -> Runs:
        """The runs of these names."""
        kept = set(names)
        found = tuple(run for run in self.found if run.name in kept)
        return replace(self, found=found, chosen_from=self.chosen_from or self)

    def thinned(self, max_rounds: int) -> Runs:
        """The same with at most so many evaluated rounds of each run, evenly spaced, the first and the last too."""
        return replace(self, max_rounds=max_rounds)


def load(folder: str | Path) -> Runs:
    """The runs below a folder, with data frames of their settings, rounds, clients, messages and results.

    Runs that are damaged, partial or running are among them with their ``status``.

    Raises:
        FedexpError: If there is no such folder, or no run in it.
    """
    pandas()
    root = Path(folder)
    return Runs(
        tuple(
            FoundRun(_name(run.path, root), run.path, run.state, run.note, run.rounds, run.command)
            for run in survey(root)
        )
    )


def load_paths(paths: Iterable[Path]) -> Runs:
    """Finished runs, by their directories; those that are not finished are left out."""
    pandas()
    unique = list(dict.fromkeys(paths))
    return Runs(tuple(FoundRun(str(path), path, "done") for path in unique if _is_done(path)))


def _is_done(path: Path) -> bool:
    try:
        return RunDir(path).result() is not None
    except FedexpError:
        return False


def _name(path: Path, folder: Path) -> str:
    inside = path.relative_to(folder) if path.is_relative_to(folder) else path
    return path.name if inside == Path() else inside.as_posix()


def _config(run: FoundRun) -> Mapping[str, Any]:
    return RunDir(run.path).config() or {}


def _probe_rows(run: FoundRun) -> Iterator[Row]:
    path = run.path / PROBES
    if path.exists():
        yield from (files.parsed(path, line) for line in files.read_text(path).splitlines())


def _frame(rows: Iterable[Row], columns: Sequence[str]) -> pd.DataFrame:
    """A frame; without rows it has these columns at least."""
    made = list(rows)
    return pandas().DataFrame(made) if made else pandas().DataFrame(columns=list(columns))
