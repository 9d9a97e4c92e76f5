"""The tables and figures, scenes and methods of the five papers, by their names. Free of torch."""

from __future__ import annotations

from functools import cache

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.reproduce.entry import Entry, Method, Scene
from fedexp.reproduce.published_files import Paper, read_paper

PAPERS = ("map", "fedrs", "fedrema", "fedmr", "fedgela")


def entries() -> dict[str, Entry]:
    """All tables and figures, in the papers' order."""
    return {e.id: e for paper in PAPERS for e in _paper(paper).entries.values()}


def entry(name: str) -> Entry:
    """A table or figure by its id.

    Raises:
        ConfigError: With the nearest id, if there is none.
    """
    paper, _, part = name.partition("/")
    if paper in PAPERS and part in _paper(paper).entries:
        return _paper(paper).entries[part]
    raise ConfigError(f"{name}: there is no such table or figure. {nearest(name, list(entries()))}")


def scene(paper: str, name: str) -> Scene:
    """A scene by its name, or by that of its experiment.

    Raises:
        ConfigError: With the nearest name, if there is none.
    """
    known = _known(paper).scenes
    by_experiment = {s.experiment: s for s in known.values()}
    found = known.get(name) or by_experiment.get(name) or by_experiment.get(f"{paper}/{name}")
    if found is None:
        raise ConfigError(f"{paper}: there is no setting {name}. {nearest(name, list(known))}")
    return found


def method(paper: str, name: str) -> Method:
    """A method by the name that its paper prints.

    Raises:
        ConfigError: With the nearest name, if there is none.
    """
    known = _known(paper).methods
    if name not in known:
        raise ConfigError(f"{paper}: there is no method {name}. {nearest(name, list(known))}")
    return known[name]


def scenes(paper: str) -> tuple[Scene, ...]:
    """All scenes of a paper, stand-ins too."""
    return tuple(_known(paper).scenes.values())


def methods(paper: str) -> tuple[Method, ...]:
    """All rows of a paper's tables and curves of its figures."""
    return tuple(method for method in _known(paper).methods.values() if not method.reading_of)


def probes_of(paper: str, scene: str, method: str) -> tuple[str, ...]:
    """The probes of all figures of a paper that are drawn from the runs of a method in a scene."""
    figures = (e for e in _known(paper).entries.values() if scene in (*e.scenes, *e.stand_ins) and method in e.rows)
    return tuple(dict.fromkeys(probe for figure in figures for probe in figure.probes))


def _known(paper: str) -> Paper:
    if paper not in PAPERS:
        raise ConfigError(f"{paper}: there is no such paper. {nearest(paper, PAPERS)}")
    return _paper(paper)


@cache
def _paper(paper: str) -> Paper:
    return read_paper(paper)
