"""Features and class vectors in the plane, as a probe has seen them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedexp.errors import ConfigError
from fedexp.report import probes
from fedexp.report.extra import pandas
from fedexp.report.figures import style
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.lines import check
from fedexp.report.figures.proxies_chart import PLANE, SPHERE, WITHIN, chart_of
from fedexp.report.frames import label, natural
from fedexp.report.load import FoundRun, Runs

if TYPE_CHECKING:
    import pandas as pd

PROBES = ("proxies", "sphere")
SERVER = "aggregated"
MODELS = {"received": "downloaded", "trained": "trained", "personal": "personal", SERVER: SERVER}
LABELS = ("class", "degrees")
AUTO, LAST = "auto", "last"
FACTORS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # by which vectors may be drawn longer
ALIKE = 4  # times: panels whose own factors differ by less have one
LONGER = 1.2  # the longest vector over the reach of features, at most
AXES = {"none": PLANE, "pca": ("component 1", "component 2"), "sphere": SPHERE}


@dataclass(frozen=True)
class Panel:
    """One model: test features with their labels, class vectors, and the classes that its owner has."""

    title: tuple[str, ...]  # method, client, its number of classes, model; what all panels have in common is not shown
    round: int
    classes: float
    features: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    vectors: np.ndarray[Any, Any]
    owned: frozenset[int]

    @property
    def reach(self) -> float:
        """How far most features are from the origin."""
        return float(np.quantile(np.linalg.norm(self.features, axis=1), WITHIN))


def proxies(
    runs: Runs,
    *,
    models: Sequence[str] = ("received", "trained", SERVER),
    clients: Sequence[str] = ("0",),
    round: str = LAST,  # noqa: A002
    by: Sequence[str] = ("algo",),
    over: str = "seed",
    scale: str = AUTO,
    labels: str = "class",
    points: str = "25",
    probe: str = PROBES[0],
) -> Figure:
    """Test features and class vectors in the plane, of the downloaded, trained and aggregated model (probe=proxies)."""
    check("labels", labels, LABELS)
    check("probe", probe, PROBES)
    for model in models:
        check("models", model, MODELS)
    probes.seen(runs, probe)
    chosen = probes.first_of_each(runs, by, over).values()
    settings = runs.done.config.set_index("run")
    told = [key for key in by if not key.startswith("partition.")]  # lists of classes are no titles
    named = [(label(settings.loc[run.name, told]) if told else "", run) for run in chosen]
    found = [panel for method, run in named for panel in _of_run(runs, probe, method, run, models, clients, round)]
    found.sort(key=lambda panel: (natural(panel.title[0]), -panel.classes))
    if len(found) > style.MAX_PANELS:
        raise ConfigError(f"{len(found)} panels do not fit in one figure. Choose fewer of models= or clients=.")
    config = runs.done.config
    axes = AXES[probes.settings(runs, probe)["project"]]
    longer = [1.0] * len(found) if axes == SPHERE else _factors(found, scale)
    shown = data(found, longer, int(_number("points", points)), labels)
    titles = _titles(found)
    if len(set(longer)) > 1:
        titles = [[*title, f"vectors × {factor:g}"] for title, factor in zip(titles, longer, strict=True)]
    rounds = " or ".join(map(str, sorted({panel.round for panel in found})))
    where = [f"{over.capitalize()} {min(config[over])}", f"round {rounds} of {max(config['rounds'])}", _common(found)]
    caption = (
        f"{', '.join(filter(None, where))}. Dots: {_of(axes)}test features; "
        f"{'diamonds' if axes == SPHERE else 'arrows'}: class vectors{_times(longer)}"
        f"{', with their direction' if labels == 'degrees' else ''}"
        f"{'' if shown['owned'].all() else f'; hollow{_dashed(axes)}: classes that the client does not own'}."
    )
    return Figure(chart_of(shown, titles, axes), shown, "Features and class vectors", caption)


def _of(axes: tuple[str, str]) -> str:
    return "principal components of " if axes == AXES["pca"] else ""


def _times(longer: Sequence[float]) -> str:
    """If all panels have the same factor, the caption says it; else their titles do."""
    return f", {longer[0]:g} times as long" if len(set(longer)) == 1 and longer[0] != 1 else ""


def _dashed(axes: tuple[str, str]) -> str:
    return "" if axes == SPHERE else " and dashed"


def _of_run(
    runs: Runs, probe: str, method: str, run: FoundRun, models: Sequence[str], clients: Sequence[str], round_: str
) -> Iterator[Panel]:
    rounds = probes.rounds_with_arrays(runs, run)
    number = rounds[-1] if round_ == LAST else int(_number("round", round_))
    if number not in rounds:
        raise ConfigError(f"round={round_}: {method} was observed in rounds {', '.join(map(str, rounds))}.")
    counts = runs.partition(run)
    everyones = frozenset(c for own in counts for c, n in enumerate(own) if n)
    seen = probes.arrays(run, number, probe)
    for model in models:
        for client in clients if model != SERVER else ("server",):
            held = seen.get(client, {})
            if f"{model}/features" not in held:
                raise ConfigError(_lacking(probe, method, model, client, number))
            owned = everyones if model == SERVER else frozenset(c for c, n in enumerate(counts[int(client)]) if n)
            classes = len(owned) if model != SERVER else sum(bool(n) for own in counts for n in own) / len(counts)
            whose = f"client {client}" if model != SERVER else ""
            some = f"{classes:.3g} of {len(counts[0])} classes" if model != SERVER or len(models) == 1 else ""
            title = (method, whose, some, MODELS[model])
            features, labels, vectors = (held[f"{model}/{part}"] for part in ("features", "labels", "vectors"))
            yield Panel(title, number, classes, features, labels, vectors, owned)


def _lacking(probe: str, method: str, model: str, client: str, number: int) -> str:
    if client == "server":
        return f"models={model}: the server of {method} has no model that is everybody's. Leave it out of models=."
    return (
        f"clients={client}: this client of {method} was not observed in round {number}. Run with "
        f"probe={probe} 'probe.{probe}.clients=[{client}]', or choose another."
    )


def _common(panels: Sequence[Panel]) -> str:
    """What all titles have in common, which the caption says instead."""
    return ", ".join(filter(None, (names.pop() for names in map(set, _words(panels)) if len(names) == 1)))


def _words(panels: Sequence[Panel]) -> list[list[str]]:
    """The words in each place of the titles."""
    return [[panel.title[place] for panel in panels if panel.title[place]] for place in range(len(panels[0].title))]


def _titles(panels: Sequence[Panel]) -> list[list[str]]:
    """The words of each title that are not the same in all."""
    several = [len(set(words)) > 1 for words in _words(panels)]
    return [[word for word, told in zip(panel.title, several, strict=True) if word and told] for panel in panels]


def _factors(panels: Sequence[Panel], scale: str) -> list[float]:
    """How much longer the vectors of each panel are drawn, so that they reach about as far as its features.

    The same for all, if that is asked for, or if it suits all about as well.
    """
    if scale != AUTO:
        return [_number("scale", scale)] * len(panels)
    longest = [float(np.linalg.norm(panel.vectors, axis=1).max()) for panel in panels]
    wanted = [panel.reach / length if length > 0 else 1.0 for panel, length in zip(panels, longest, strict=True)]
    if max(wanted) <= ALIKE * min(wanted):
        wanted = [float(np.median(wanted))] * len(panels)
    return [max((factor for factor in FACTORS if factor <= LONGER * ratio), default=FACTORS[0]) for ratio in wanted]


def data(panels: Sequence[Panel], longer: Sequence[float], per_class: int, labels: str) -> pd.DataFrame:
    """One row per feature and per class vector: ``panel`` (its number), ``kind``, ``class``, ``owned`` and place."""
    rows: list[dict[str, Any]] = []
    for number, (panel, factor) in enumerate(zip(panels, longer, strict=True)):
        for c, vector in enumerate(panel.vectors):
            same = {"panel": number, "class": c, "owned": c in panel.owned}
            own = panel.features[panel.labels == c][:per_class]
            rows += [{**same, "kind": "feature", "x": _short(x), "y": _short(y)} for x, y in own]
            direction = math.degrees(math.atan2(vector[1], vector[0]))
            tip = {"x": _short(factor * vector[0]), "y": _short(factor * vector[1]), "norm": float(np.hypot(*vector))}
            text = str(c) if labels == "class" else f"{c}: {direction:z.0f}°".replace("-", "−")
            rows.append({**same, "kind": "vector", **tip, "degrees": direction, "label": text})
    return pandas().DataFrame(rows)


def _short(value: float) -> float:
    """To four digits: a figure has thousands of them."""
    return float(f"{value:.4g}")


def _number(key: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        raise ConfigError(f"{key}={text}: this must be a number above 0.")
    return number
