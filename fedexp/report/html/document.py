"""From a report to one HTML file with everything in it: scripts once, data once, nothing to fetch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from fedexp import __version__
from fedexp.report.extra import altair, jinja2, vl_convert
from fedexp.report.figures import style
from fedexp.report.html.blocks import Drawing, Report, drawings

DIGITS = 5  # significant ones of numbers in figures


def rendered(report: Report) -> str:
    """The file's text."""
    environment = jinja2().Environment(
        loader=jinja2().FunctionLoader(_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["block"] = lambda block, name: type(block).__name__ == name
    shown = [drawing for section in report.sections for drawing in drawings(section.blocks)]
    text: str = environment.get_template("page.html").render(
        report=report,
        css=_file("page.css"),
        script=_file("page.js"),
        vega=_vega() if shown else "",
        data=json.dumps(embedded(shown), separators=(",", ":"), allow_nan=False).replace("<", r"\u003c"),
        version=__version__,
        date=date.today().isoformat(),
    )
    return text


def embedded(shown: Iterable[Drawing]) -> dict[str, Any]:
    """Figures with their data apart, as columns of which each different one is there once, and how figures look."""
    datasets: dict[str, str] = {}
    figures = {drawing.id: _without_data(drawing.spec, datasets) for drawing in shown}
    return {
        "figures": figures,
        "data": {name: json.loads(text) for text, name in datasets.items()},
        "look": style.configuration(),
        "dark": style.DARK,
    }


def _without_data(spec: Mapping[str, Any], datasets: dict[str, str]) -> dict[str, Any]:
    """A specification in which data are names; the data are added to ``datasets``, by their text."""
    own = {
        name: datasets.setdefault(json.dumps(_columns(rows), separators=(",", ":")), f"d{len(datasets)}")
        for name, rows in spec.get("datasets", {}).items()
    }

    def renamed(node: Any) -> Any:
        if isinstance(node, Mapping):
            if node.get("name") in own:
                return {"kept": own[node["name"]]}
            return {key: renamed(value) for key, value in node.items()}
        return [renamed(value) for value in node] if isinstance(node, list) else node

    return {key: renamed(value) for key, value in spec.items() if key != "datasets"}


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rows by column, in a fifth of the space: ``page.js`` has the way back."""
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        columns[name] = [_short(row.get(name)) for row in rows]
    made: dict[str, Any] = {}
    for name, values in columns.items():
        twin = next((other for other in made if columns[other] == values), None)
        made[name] = {"same": twin} if twin else _column(values)
    return {"rows": len(rows), "columns": made}


def _column(values: list[Any]) -> Any:
    """The values; of texts their places in a list of those that there are."""
    known = list(dict.fromkeys(values))
    if len(known) == 1:
        return {"all": known[0]}
    if all(isinstance(value, str) for value in known):
        return {"texts": known, "at": [known.index(value) for value in values]}
    return values


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


@cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which comes with vl-convert."""
    version = ".".join(altair().SCHEMA_VERSION.lstrip("v").split(".")[:2])
    script = str(vl_convert().javascript_bundle(vl_version=version))
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)  # which would end the element that it is in


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
