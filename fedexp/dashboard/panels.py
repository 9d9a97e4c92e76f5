"""What a dashboard shows: panels by section, from the names that trackers give to series."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedexp.dashboard.extra import reports
from fedexp.track.pictures import KINDS
from fedexp.track.series import AXES, GOALS, ROUND

MISSING = ("owned", "owned_restricted", "absent", "rare", "forgotten", "predicted_owned")
USUAL_SETTINGS = ("algo", "data", "partition", "local.epochs", "optim.lr", "cohort.fraction")
CHOICES = ("algo", "data", "partition", "model", "optim", "schedule", "evaluate", "experiment")
RESULTS = tuple(f"result/{goal}/mean" for goal in GOALS)  # of the last rounds
COLUMNS = 24  # of a report's grid
WIDTH, HEIGHT = 8, 6  # of a panel in it


def sections(settings: Sequence[str]) -> Mapping[str, list[Any]]:
    """The panels of a workspace by section; ``settings`` are the axes of the parallel coordinates."""
    wr = reports()
    return {
        "Both goals": goals(),
        "Fairness": [
            line("personalization/worst_decile", "worst tenth of clients"),
            line("personalization/std", "standard deviation over clients"),
            line("personalization/clients", "accuracies of clients"),
            wr.WeavePanelSummaryTable(table_name="clients"),
        ],
        "Classes": [by_class(goal) for goal in GOALS],
        "Missing classes": [line(f"missing/{name}", name.replace("_", " ")) for name in MISSING],
        "Settings": [parallel(settings), importance(), wr.RunComparer(diff_only="split")],
        "Cost": [
            *(line(key, AXES[key]) for key in AXES if key != ROUND),
            wr.LinePlot(title="seconds by kind of work", x=ROUND, metric_regex="seconds/.*", title_y="seconds"),
        ],
        "Pictures": [wr.MediaBrowser(media_keys=[f"figures/{name}" for name in KINDS], num_columns=2)],
    }


def goals() -> list[Any]:
    """Both goals over rounds, bytes and seconds, and against each other."""
    return [*(line(f"{goal}/accuracy", goal, x=axis) for goal in GOALS for axis in AXES), plane()]


def line(key: str, title: str, x: str = ROUND) -> Any:
    """A series over rounds or another axis."""
    words = title if x == ROUND else f"{title} by {AXES[x]}"
    return reports().LinePlot(title=words, x=x, y=[key], title_x=AXES[x])


def plane() -> Any:
    """Aggregation against personalization, one point for each run."""
    wr = reports()
    x, y = (wr.SummaryMetric(name) for name in RESULTS)
    return wr.ScatterPlot(title="aggregation × personalization, mean of the last rounds", x=x, y=y)


def by_class(goal: str) -> Any:
    """The accuracy of each class over rounds."""
    return reports().LinePlot(title=f"{goal}, by class", x=ROUND, metric_regex=f"{goal}/class/.*", title_x=AXES[ROUND])


def parallel(settings: Sequence[str]) -> Any:
    """Settings and results as parallel axes."""
    wr = reports()
    metrics = [*(wr.Config(config_key(name)) for name in settings), *(wr.SummaryMetric(name) for name in RESULTS)]
    names = [*settings, *GOALS]
    columns = [wr.ParallelCoordinatesPlotColumn(metric, name) for metric, name in zip(metrics, names, strict=True)]
    return wr.ParallelCoordinatesPlot(columns=columns, title="settings and results")


def importance() -> Any:
    """Which settings go along with the result."""
    return reports().ParameterImportancePlot(with_respect_to=RESULTS[0])


def config_key(setting: str) -> str:
    """Where W&B has a setting: ``algo`` alone is the choice, ``algo.rs.alpha`` a value of it."""
    return f"choices.{setting}" if setting in CHOICES else setting


def arranged(panels: Sequence[Any]) -> list[Any]:
    """Panels in rows of a report's grid."""
    layout, per_row = reports().Layout, COLUMNS // WIDTH
    for number, panel in enumerate(panels):
        panel.layout = layout(x=number % per_row * WIDTH, y=number // per_row * HEIGHT, w=WIDTH, h=HEIGHT)
    return list(panels)


def with_lasting_ids(panels: Sequence[Any], place: str) -> list[Any]:
    """Panels whose ids are the same whenever they are made, so that saving twice changes nothing."""
    for number, panel in enumerate(panels):
        panel._id = hashlib.sha256(f"{place} {number}".encode()).hexdigest()[:11]  # noqa: SLF001 - else it is random
    return list(panels)
