"""A workspace, and reports of reproductions, as W&B is told of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedexp.dashboard.extra import expressions, reports, workspaces
from fedexp.dashboard.panels import arranged, config_key, goals, sections, with_lasting_ids
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.local import on_file, our_results
from fedexp.reproduce.request import Request, every_scene, request
from fedexp.reproduce.show import table_of

GROUPED = {"group": "Group", "method": "JobType"}  # W&B's own words for what trackers tell it
TITLE_LENGTH = 128  # W&B's limit
OPEN = ("Both goals",)


def workspace(entity: str, project: str, name: str, *, by: Sequence[str], settings: Sequence[str]) -> Any:
    """A saved view of a project. The same name is the same view.

    Args:
        entity: Account or team.
        project: W&B project.
        name: What the view is called.
        by: What runs are grouped by: ``group`` (the sweep), ``method``, or any setting.
        settings: The axes of the parallel coordinates.
    """
    ws, expr = workspaces(), expressions()
    made = ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name=title, panels=with_lasting_ids(panels, title), is_open=title in OPEN)
            for title, panels in sections(settings).items()
        ],
        runset_settings=ws.RunsetSettings(
            groupby=[expr.Metric(GROUPED[key]) if key in GROUPED else expr.Config(config_key(key)) for key in by]
        ),
    )
    made._internal_name = f"nw-{_lasting(name)}-v"  # noqa: SLF001 - the only way to find it again
    return made


def report(entity: str, project: str, entry: Entry, results: Path, out: Path) -> Any:
    """A page about a table or figure of a paper: ours beside the published numbers, and the runs of each setting."""
    wr = reports()
    asked = request(entry, settings=every_scene(entry), out=str(out))
    table = table_of(asked, our_results(asked, results, []))
    return wr.Report(
        entity=entity,
        project=project,
        title=f"{entry.id}: {entry.title}"[:TITLE_LENGTH],
        description=f"python -m fedexp.reproduce {entry.id}",
        blocks=[wr.TableOfContents(), wr.MarkdownBlock(table.markdown()), *_runs(entry, asked)],
        width="fluid",
    )


def _runs(entry: Entry, asked: Request) -> Iterator[Any]:
    """The panels of each setting, whose runs are those of one group."""
    wr, expr = reports(), expressions()
    for scene in asked.scenes:
        place = f"{entry.id} {scene.name}"
        runs = wr.Runset(
            name=scene.name, filters=expr.And(expr.Metric("Group") == scene.experiment), groupby=[GROUPED["method"]]
        )
        runs._id = _lasting(place)  # noqa: SLF001 - else it is random
        yield wr.H2(scene.name)
        yield wr.PanelGrid(runsets=[runs], panels=with_lasting_ids(arranged(goals()), place))


def with_results(results: Path, out: Path) -> list[Entry]:
    """The tables and figures that have results, committed or on this machine."""
    entries = published.entries().values()
    return [entry for entry in entries if entry.scenes and entry.measures and on_file(entry.id, results, out)]


def specification(made: Any) -> dict[str, Any]:
    """A workspace or a report as it is sent to W&B."""
    model = made._to_model()  # noqa: SLF001 - nothing public gives it without sending it
    spec: dict[str, Any] = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    return {"name": model.display_name, "spec": spec}


def _lasting(text: str) -> str:
    """An id of W&B's kind that is the same for the same text."""
    return hashlib.sha256(f"fedexp {text}".encode()).hexdigest()[:11]
