"""``python -m fedexp.algos``: which methods there are, and what each of them is."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fedexp.config.compose import choices_of, composed, conf_dir
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import human_bytes

if TYPE_CHECKING:
    from fedexp.core.component import Component

FOLDER = "algo"


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
    commands.add_parser("list").add_argument("--markdown", action="store_true", help="as the table of the README")
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
    """The table of methods in the README."""
    rows = ["| `algo=` | what | components |", "|---|---|---|"]
    for name, what, keys in methods():
        rows.append(f"| `{name}` | {what} | {' '.join(f'`{key}`' for key in keys)} |")
    return "\n".join(rows)


def title_of(name: str) -> str:
    """The comment that a method's file begins with, without what is about its settings."""
    lines = _file(name).read_text().splitlines()
    if not lines[0].startswith("#"):  # {}  # a method without components
        return lines[0].partition("#")[2].strip()
    comment = " ".join(line.lstrip("# ") for line in _leading(lines) if "@package" not in line)
    return re.split(r"(?<=[.\")])\s+(?=[A-Z])", comment)[0] if comment else ""


def _leading(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("#"):
            return
        yield line


def _file(name: str) -> Path:
    return conf_dir() / FOLDER / f"{name}.yaml"


# ---------------------------------------------------------------- one method
def _show(name: str) -> None:
    from fedexp.build import make  # torch, which a misspelt name need not wait for

    if name not in (known := choices_of(FOLDER)):
        raise ConfigError(f"algo={name}: there is no such choice. {nearest(name, known)}")
    console = open_console(highlight=False, markup=False)
    console.print(f"algo={name}: {title_of(name)}\n", soft_wrap=True)
    config = composed([f"{FOLDER}={name}"])
    for key, node in config[FOLDER].items():
        component: Component = make(node)
        console.print(f"{key}: {node['_target_']}", style="bold")
        console.print(inspect.getdoc(component) or "", soft_wrap=True)
        table = Table("setting", "value", "origin", box=None)
        origins = _origins(name, key)
        for setting, value in node.items():
            if not setting.startswith("_"):
                table.add_row(f"algo.{key}.{setting}", str(value), origins.get(setting, ""))
        console.print(table)
        console.print(f"{_neutral(key, component)}\n", soft_wrap=True)
    console.print(_messages(config))


def _neutral(key: str, component: Component) -> str:
    """The setting with which the server's model is that of FedAvg."""
    neutral = component.neutral()
    if neutral is None:
        return "No setting makes it FedAvg."
    changed = [
        f"algo.{key}.{f.name}={getattr(neutral, f.name)}"
        for f in fields(neutral)
        if getattr(neutral, f.name) != getattr(component, f.name)
    ]
    return f"The server's model is FedAvg's with {' '.join(changed) or 'these settings'}."


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


def _messages(config: dict[str, Any]) -> Table:
    """What is sent each way and kept, with the default network and data set."""
    from fedexp.build import build, make

    needs_public = any(make(node).needs_public for node in config[FOLDER].values())
    content = build({**config, "public": 100 if needs_public else 0}).plan.content
    table = Table("message or state", "where", "bytes", title=f"With the {config['choices']['model']}", box=None)
    for way, words in (("down", "to each client"), ("up", "from each client")):
        for name, size in content["messages"][way].items():
            table.add_row(name, words, human_bytes(size))
    for name, slot in content["slots"].items():
        table.add_row(name, f"kept: {slot['scope']}", human_bytes(slot["bytes"]))
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
