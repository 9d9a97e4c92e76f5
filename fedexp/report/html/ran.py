"""The chapter on what ran: runs, settings that differ and that are the same, versions, commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedexp.report import frames
from fedexp.report.html.blocks import Cell, Commands, Facts, Folded, Heading, Paragraph, Part, Section, Table, words
from fedexp.report.html.layout import METHOD, SEED, Layout
from fedexp.report.html.tables import EMPTY, key_heading
from fedexp.report.load import FoundRun, Runs
from fedexp.report.measure import Metric
from fedexp.runs.commands import commands_of
from fedexp.runs.directory import RunDir
from fedexp.terminal.numbers import DASH, clock, count, human_bytes

LOOKS = {"done": "good", "failed": "bad", "damaged": "bad"}
OF_RUNS = {"aggregation.last": "aggregation, last (%)", "personalization.mean": "personalization, mean (%)"}
NOT_TOLD = ("run", "status", "out", "plan", "force")


def ran(runs: Runs, layout: Layout, folder: Path | None) -> Section:
    """The chapter; the commands are those of sweeps in the folder and of runs that are not of one."""
    blocks: list[Any] = [Part("runs", "Runs", (_runs(runs, layout),)), Part("settings", "Settings", _settings(runs))]
    if found := _versions(runs):
        blocks.append(Part("versions", "Versions", words(found)))
    if lines := commands_of(folder, [run.path for run in runs.found]) if folder else []:
        about = Paragraph(
            "The same command again runs only what is missing. Add out=FOLDER if the runs are not to be in multirun."
        )
        blocks.append(Part("commands", "Commands", (about, Commands(tuple(lines)))))
    return Section("ran", "What ran", tuple(blocks))


def facts(runs: Runs, layout: Layout) -> tuple[tuple[str, str], ...]:
    """What stands at the head of the report."""
    states = Counter(run.status for run in runs.found)
    told = [("runs", ", ".join(f"{number} {state}" for state, number in states.items()))]
    told += [
        (key.rpartition(".")[2].replace("_", " "), _listed(runs, key))
        for key in dict.fromkeys((METHOD, "data", "partition", "model", *layout.scenes, "rounds", SEED))
        if key in runs.config
    ]
    results = runs.done.results
    if "bytes.up" in results:
        told.append(("sent", human_bytes(float(results["bytes.up"].sum() + results["bytes.down"].sum()))))
    if "seconds.elapsed" in results:
        told.append(("time", clock(float(results["seconds.elapsed"].sum()))))
    return tuple(told)


def _listed(runs: Runs, key: str, most: int = 8) -> str:
    values = sorted(set(runs.config[key].map(frames.written)) - {DASH}, key=frames.natural)
    return ", ".join(values) if len(values) <= most else f"{', '.join(values[:most])} and {len(values) - most} more"


# ---------------------------------------------------------------- runs
def _runs(runs: Runs, layout: Layout) -> Table:
    keys = [key for key in (*layout.keys, SEED) if key in runs.config and key != "run"]
    config = {row["run"]: row for row in runs.config.to_dict("records")}
    results = {row["run"]: row for row in runs.results.to_dict("records")}
    headings = [Heading("run"), Heading("status"), *(_key_heading(runs, key) for key in keys)]
    headings += [Heading(text, numeric=True) for text in ("rounds", *OF_RUNS.values(), "sent", "time")]
    rows = [_run(run, keys, config.get(run.name, {}), results.get(run.name, {})) for run in runs.found]
    return Table(count(len(runs.found), "run"), tuple(headings), tuple(rows))


def _key_heading(runs: Runs, key: str) -> Heading:
    return replace(key_heading(key), numeric=all(isinstance(value, int | float) for value in runs.config[key]))


def _run(run: FoundRun, keys: Sequence[str], config: dict[str, Any], result: dict[str, Any]) -> tuple[Cell, ...]:
    settings = [Cell(frames.written(config.get(key)), _order(config.get(key))) for key in keys]
    rounds = Cell(run.rounds.partition("/")[0] if run.status == "done" else run.rounds, _first(run.rounds))
    numbers = [_number(name, result.get(name)) for name in OF_RUNS]
    sent, seconds = result.get("bytes.up"), result.get("seconds.elapsed")
    total = None if sent is None else sent + result["bytes.down"]
    return (
        Cell(run.name, look="code"), Cell(run.status, look=LOOKS.get(run.status, "")), *settings, rounds, *numbers,
        EMPTY if total is None else Cell(human_bytes(total), float(total)),
        EMPTY if seconds is None else Cell(clock(seconds), float(seconds)),
    )  # fmt: skip


def _order(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None


def _first(rounds: str) -> float:
    first = rounds.partition("/")[0]
    return float(first) if first.isdecimal() else -1.0


def _number(name: str, value: float | None) -> Cell:
    if value is None or value != value:
        return EMPTY
    metric = Metric(name)
    return Cell(metric.text(value * metric.factor), float(value))


# ---------------------------------------------------------------- settings
def _settings(runs: Runs) -> tuple[Any, ...]:
    differing = [key for key in runs.differing(runs.config["run"]) if key not in NOT_TOLD]
    same = tuple(_same(runs, differing))
    varied = Facts(tuple((key, _listed(runs, key, most=20)) for key in differing))
    shown = varied if differing else Paragraph("The settings of all runs are the same." if len(runs.found) > 1 else "")
    return shown, Folded(f"{count(len(same), 'setting')} in common", (Facts(same),))


def _same(runs: Runs, differing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The settings with one value, and which method has them if not all do."""
    for key in sorted(runs.config.columns):
        if key in differing or key in NOT_TOLD:
            continue
        values = runs.config[key].map(frames.written)
        those = runs.config[values != DASH]
        owners = sorted(set(those[METHOD])) if METHOD in those and len(those) < len(values) else []
        yield key, next(iter(values[values != DASH]), DASH) + (f"  ({', '.join(owners)})" if owners else "")


def _versions(runs: Runs) -> list[str]:
    found: Counter[str] = Counter()
    for run in runs.done.found:
        told = (RunDir(run.path).result() or {}).get("versions", {})
        found[", ".join(f"{name} {version}" for name, version in told.items())] += 1
    return [f"{text or 'not recorded'}: {count(number, 'run')}" for text, number in found.most_common()]
