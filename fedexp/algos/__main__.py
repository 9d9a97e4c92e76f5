"""``python -m fedexp.algos``: which methods there are, and what each of them is."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.config.sources import conf_dir
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import human_bytes

if TYPE_CHECKING:
    from fedexp.build import Experiment
    from fedexp.core.algorithm import Algorithm
    from fedexp.core.component import Component

FOLDER = "algo"
KEPT = {
    "client": "kept by each client",
    "server": "kept by the server",
    "mailbox": "kept by the server for each client",
    "constant": "known from the start",
}


def main(argv: Sequence[str]) -> int:
    """Prints what is asked for; returns the exit code."""
    return perform(lambda: _run(argv))


def _run(argv: Sequence[str]) -> None:
    parser = Parser(
        prog="python -m fedexp.algos",
        description="list: every method, with its paper and components. show NAME: equations, hyper-parameters with "
        "their\norigin, what is sent each way, what a client keeps, deviations from paper and public code.",
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    commands.add_parser("list").add_argument("--markdown", action="store_true", help="as the table of the guide")
    commands.add_parser("show").add_argument("name", help="as in algo=name")
    asked = parser.read(argv)
    if asked.command == "show":
        _show(asked.name)
    elif asked.markdown:
        sys.stdout.write(f"{markdown()}\n")
    else:
        table = Table("algo=", "what", "components", box=None, pad_edge=False)
        for name, what, keys in methods():
            table.add_row(name, what, " ".join(keys))
        open_console(highlight=False, markup=False).print(table)


def methods() -> Iterator[tuple[str, str, list[str]]]:
    """Every method: its name, what its file says it is, and the keys of its components."""
    for name in choices_of(FOLDER):
        yield name, title_of(name), list(composed([f"{FOLDER}={name}"])[FOLDER])


def markdown() -> str:
    """The table of methods in the guide."""
    rows = ["| `algo=` | what | components |", "|---|---|---|"]
    for name, what, keys in methods():
        rows.append(f"| `{name}` | {what} | {' '.join(f'`{key}`' for key in keys)} |")
    return "\n".join(rows)


def title_of(name: str) -> str:
    """The first sentence of the comment that a method's file begins with."""
    return re.split(r"(?<=[.\")])\s+(?=[A-Z])", " ".join(_comment(name)))[0]


def _comment(name: str) -> list[str]:
    """The lines of the comment that a method's file begins with."""
    lines = _file(name).read_text().splitlines()
    if not lines[0].startswith("#"):  # {}  # a method without components
        return [lines[0].partition("#")[2].strip()]
    leading = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in leading if "@package" not in line]


def _file(name: str) -> Path:
    return conf_dir() / FOLDER / f"{name}.yaml"


# ---------------------------------------------------------------- one method
def _show(name: str) -> None:
    if name not in (known := choices_of(FOLDER)):
        raise ConfigError(f"algo={name}: there is no such choice. {nearest(name, known)}")
    console = open_console(highlight=False, markup=False)
    comment = "\n".join(_comment(name))
    console.print(f"algo={name}: {comment}\n", soft_wrap=True)
    config = composed([f"{FOLDER}={name}"])
    for key, node in config[FOLDER].items():
        component: Component = make(node)
        console.print(f"{key}: {node['_target_']}", style="bold")
        console.print(description(type(component)), soft_wrap=True)
        origins = _origins(name, key)
        named = ((setting, value) for setting, value in node.items() if not setting.startswith("_"))
        console.print(_settings((f"algo.{key}.{s}", _word(value), origins.get(s, "")) for s, value in named))
        console.print(f"{_neutral(key, component)}\n", soft_wrap=True)
    if beside := _settings_beside(name):
        console.print(_settings(beside), "")
    experiment = _built(config)
    console.print(_messages(experiment.plan.content, config["choices"]["model"]))
    console.print(f"\n{_tested(experiment.algorithm)}", soft_wrap=True)


def description(kind: type[Component]) -> str:
    """Its docstring, after those of the abstract classes that it completes."""
    kinds = [k for k in reversed(kind.__mro__) if inspect.isabstract(k) or k is kind]
    return "\n\n".join(inspect.getdoc(k) or "" for k in kinds)


def _neutral(key: str, component: Component) -> str:
    """The setting with which the server's model is as without the component; FedAvg's, if it is the only one."""
    neutral = component.neutral()
    if neutral is None:
        return "No setting leaves the server's model as it is without this component."
    changed = [
        f"algo.{key}.{f.name}={_word(getattr(neutral, f.name))}"
        for f in fields(neutral)
        if getattr(neutral, f.name) != getattr(component, f.name)
    ]
    if not changed:
        return "The server's model is as without this component."
    return f"With {' '.join(changed)} the server's model is as without this component."


def _word(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _origins(name: str, key: str) -> dict[str, str]:
    """The comments beside a component's settings: in the method's own file, or in those it is made of."""
    text = _file(name).read_text()
    found: dict[str, str] = {}
    for base in re.findall(r"^  - (\w+)$", text, re.MULTILINE):
        if base != "_self_":
            found |= _origins(base, key)
    block = re.search(rf"^( *){re.escape(key)}:\n((?:\1[ #].*\n?)*)", text, re.MULTILINE)
    pattern = r"^ +(\w+):[^#\n]*#\s*(.+)$"
    return found | dict(re.findall(pattern, block[2], re.MULTILINE) if block else [])


def _settings(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Settings with their values and where these come from."""
    table = Table("setting", "value", "origin", box=None)
    for row in rows:
        table.add_row(*row)
    return table


def _settings_beside(name: str) -> list[tuple[str, str, str]]:
    """Settings outside ``algo`` that a method's file makes, as FedDF's ``public``."""
    text = _file(name).read_text()
    return re.findall(r"^(\w+): +([^\s#{]+) *(?:# *(.+))?$", text, re.MULTILINE) if "@package _global_" in text else []


def _built(config: dict[str, Any]) -> Experiment:
    """The method with the default network and data set."""
    from fedexp.build import build

    needs_public = any(make(node).needs_public for node in config[FOLDER].values())
    return build({**config, "public": 100 if needs_public else 0})


def _tested(algorithm: Algorithm) -> str:
    """Which models there are, and which view is absent."""
    whole = "the server's model" if algorithm.global_view else "nothing, since the server's model is incomplete"
    own = "a model of the client's own" if algorithm.personal else "the server's model after local training"
    adapted = f", trained by {' and '.join(p.name for p in algorithm.test_phases)} before" * bool(algorithm.test_phases)
    return f"Tested for aggregation: {whole}; for personalization: {own}{adapted}."


def _messages(content: dict[str, Any], model: str) -> Table:
    """What is sent each way and kept."""
    table = Table("message or state", "where", "bytes", title=f"With the {model}", box=None)
    for way, words in (("down", "to each client"), ("up", "from each client")):
        for name, size in content["messages"][way].items():
            table.add_row(name, words, human_bytes(size))
    for name, slot in content["slots"].items():
        table.add_row(name, KEPT[slot["scope"]], human_bytes(slot["bytes"]))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
