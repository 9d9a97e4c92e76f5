"""The chapters on what came out: results, missing classes, clients, hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedexp.report.html.blocks import Gallery, Paragraph, Section
from fedexp.report.html.figures import OTHERS, Figures
from fedexp.report.html.layout import REFERENCE, Layout
from fedexp.report.html.tables import differences_table, results_table
from fedexp.report.load import Runs

GOALS = {
    "aggregation.last": ("last", "Server's model on the global test set, last evaluated round."),
    "aggregation.best": ("best", "Best evaluated round."),
    "aggregation.mean": ("mean", "Mean of the last evaluated rounds, evaluate.window of them."),
    "aggregation.GA": ("GA", "FedGELA's GA: the best accuracy of the server's model."),
    "personalization.last": ("last", "Clients' personal models on their own held-out samples, last evaluated round."),
    "personalization.mean": ("mean", "Mean of the last evaluated rounds, evaluate.window of them."),
    "personalization.all_clients": ("all clients", "Every client, trained and tested once more after the last round."),
    "personalization.worst_decile": ("worst tenth", "The worst tenth of a round's clients, mean of the last rounds."),
    "personalization.before": ("before", "The model that clients receive, before local training."),
    "personalization.personal_before": ("personal before", "The personal model, before local training."),
    "personalization.PA": ("PA", "FedGELA's PA: the best accuracy of personal models."),
}
COMPARED = {name: GOALS[name] for name in ("aggregation.last", "aggregation.mean", "personalization.mean")}
MISSING = {
    "missing.accuracy": ("all classes", "Personal models after local training, on a sample of the global test set."),
    "missing.owned": ("owned", "On samples of classes that the client has training samples of."),
    "missing.owned_restricted": ("owned, restricted", "The same if only these classes are possible answers."),
    "missing.absent": ("absent", "On samples of all other classes."),
    "missing.rare": ("rare", "On classes with few owners or few training samples in the whole federation."),
    "missing.forgotten": ("forgotten", "Absent classes: accuracy of the model as received, less that after training."),
    "missing.predicted_owned": ("answers owned", "Share of the sample that is taken for one of the client's classes."),
}
ABOUT_MISSING = (
    "What personal models know of classes that their clients do not own, after local training: means over clients and "
    "over the last evaluated rounds."
)


def results(runs: Runs, layout: Layout, figures: Figures) -> Iterator[Section]:
    """The chapters that these runs have something for."""
    main = results_table(runs, layout, GOALS, "Accuracy of both goals")
    compared = differences_table(runs, layout, COMPARED, REFERENCE)
    known = results_table(runs, layout, MISSING, "Missing classes")
    yield from _section("results", "Results", [main, compared, *_gallery(figures, "results")])
    yield from _section("parameters", "Hyper-parameters", _gallery(figures, "parameters"))
    missing = [known, *_gallery(figures, "missing")] if known else _gallery(figures, "missing")
    yield from _section("missing", "Missing classes", [Paragraph(ABOUT_MISSING), *missing] if missing else [])
    yield from _section("clients", "Clients and classes", _gallery(figures, "clients"))
    yield from _section("observed", "Further figures", _gallery(figures, OTHERS))


def _gallery(figures: Figures, section: str) -> list[Gallery]:
    return [Gallery(figures.of(section))] if figures.of(section) else []


def _section(name: str, title: str, blocks: Sequence[object]) -> Iterator[Section]:
    there = tuple(block for block in blocks if block is not None)
    if there:
        yield Section(name, title, there)
