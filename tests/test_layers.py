"""Which part of the package may import which: only what stands further up in the list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "fedexp"
LAYERS = (
    ("errors",),
    ("terminal",),
    ("system",),
    ("core", "data", "partition", "models", "config"),
    ("client", "server", "algos", "evaluate", "display", "probes"),
    ("execute",),
    ("runs", "track"),
    ("engine", "overlap", "measurement"),
    ("parts", "build"),
    ("sweep", "api"),
    ("cli", "testing", "doctor", "__main__", "__init__"),
    ("bench",),
    ("reproduce", "report"),
    ("dashboard",),
)
EXCEPTIONS = {
    "algos": {"build"},  # python -m fedexp.algos show
    "data": {"build", "report"},  # python -m fedexp.data show builds what a run would, and draws it
    "runs": {"report"},  # python -m fedexp.runs table and plot
    "track": {"report"},  # pictures of a run, and its settings by their dotted names
    "__init__": {"api", "report"},  # fedexp.run, fedexp.load
}


def imported() -> Iterator[tuple[str, str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedexp."):
                yield own, node.module.split(".")[1], f"{path.relative_to(PACKAGE)} imports {node.module}"


def test_nobody_imports_from_further_down():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = [
        words
        for own, other, words in imported()
        if own != other and level[other] > level[own] and other not in EXCEPTIONS.get(own, ())
    ]
    assert wrong == []


def test_what_a_run_is_made_of_never_sees_its_configuration():
    """Components, clients, server, executors and the engine are given values by ``build``."""
    parts = {"core", "models", "partition", "client", "server", "algos", "evaluate", "execute", "engine", "probes"}
    values = {"fedexp.config.settings", "fedexp.config.schema", "fedexp.config.suggest"}  # declarations, and words
    found = [
        (own, words)
        for own, other, words in imported()
        if own in parts and other == "config" and "__main__" not in words  # commands read configurations
    ]
    assert [words for _, words in found if words.rpartition(" ")[2] not in values] == []
    assert {own for own, _ in found} >= {"client", "server", "engine"}


def test_every_part_has_its_layer():
    names = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert names == {name for names in LAYERS for name in names}


def test_no_exception_is_left_that_is_not_needed():
    found = {(own, other) for own, other, _ in imported()}
    assert {(own, other) for own, others in EXCEPTIONS.items() for other in others} <= found
