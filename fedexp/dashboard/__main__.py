"""``python -m fedexp.dashboard project=NAME``: a dashboard in W&B for runs that are mirrored there."""

from __future__ import annotations

import json
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedexp.dashboard.panels import USUAL_SETTINGS
from fedexp.errors import ConfigError
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

PROGRAM = "python -m fedexp.dashboard"
USAGE = f"{PROGRAM} project=NAME [KEY=VALUE ...]"
DETAILS = """
Makes or updates a saved workspace in a W&B project (both goals over rounds, bytes and seconds, fairness, classes,
missing classes, settings, cost, pictures), and a report for each table and figure of a paper that has results. The same
command again changes the same workspace and the same reports.

  entity=TEAM        account or team (default: the account's own)
  name=fedexp        what the workspace is called
  by=group,method    what runs are grouped by: group (the sweep), method, or any setting
  settings=A,B       axes of the parallel coordinates: settings of runs (default: those in which runs= differ)
  runs=FOLDER        runs on disk whose settings are compared for that
  reproduce=A,B      tables and figures to report on, map/table1; none: no report (default: all that have results)
  results=FOLDER     the committed results (multirun/results)      out=FOLDER   root of your own runs (multirun)
  dry=true           write the specification to a file and send nothing; needs no key and no network
  to=FILE            that file (dashboard.json)"""
DEFAULTS = {
    "project": "", "entity": "", "name": "fedexp", "by": "group,method", "settings": "", "runs": "", "reproduce": "",
    "results": "multirun/results", "out": "multirun", "dry": "false", "to": "dashboard.json",
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit code."""
    return perform(lambda: _perform(argv))


def _perform(argv: Sequence[str]) -> int:
    parser = Parser(prog=PROGRAM, usage=USAGE, epilog=DETAILS)
    for key, value in DEFAULTS.items():
        parser.add_argument(f"--{key}", default=value)
    given = parser.read(argv)
    if not given.project:
        raise ConfigError(f"Which W&B project? Name it: project=NAME.\n{USAGE}")
    if given.dry not in ("true", "false"):
        raise ConfigError(f"dry={given.dry}: this must be true or false.")
    console = open_console(highlight=False, markup=False, soft_wrap=True)
    return (_write if given.dry == "true" else _save)(given, console)


def _made(given: Namespace) -> tuple[Any, list[Any]]:
    """The workspace and the reports."""
    from fedexp.dashboard.make import report, with_results, workspace
    from fedexp.reproduce import published

    results, out = Path(given.results), Path(given.out)
    by, settings = _listed(given.by), _listed(given.settings) or _differing(given.runs) or USUAL_SETTINGS
    made = workspace(given.entity, given.project, given.name, by=by, settings=settings)
    if given.reproduce == "none":
        entries = []
    elif given.reproduce:
        entries = [published.entry(name) for name in _listed(given.reproduce)]
    else:
        entries = with_results(results, out)
    return made, [report(given.entity, given.project, entry, results, out) for entry in entries]


def _write(given: Namespace, console: Console) -> int:
    from fedexp.dashboard.make import specification
    from fedexp.system.files import write_atomically, writing

    made, reports = _made(given)
    whole = {"workspace": specification(made), "reports": [specification(each) for each in reports]}
    path = Path(given.to)
    with writing(path):
        write_atomically(path, (json.dumps(whole, indent=1) + "\n").encode())
    console.print(f"written   {path}: a workspace, {len(reports)} reports; nothing was sent")
    return 0


def _save(given: Namespace, console: Console) -> int:
    from fedexp.dashboard import save

    save.demand_key()
    given.entity = given.entity or save.default_entity()
    save.demand_project(given.entity, given.project)
    made, reports = _made(given)
    console.print(f"workspace  {save.save_workspace(made)}")
    for url in save.save_reports(given.entity, given.project, reports):
        console.print(f"report     {url}")
    return 0


def _differing(folder: str) -> tuple[str, ...]:
    """The settings in which runs on disk differ, but for seeds."""
    if not folder:
        return ()
    from fedexp.report.load import load

    runs = load(folder)
    return tuple(key for key in runs.differing(run.name for run in runs.found) if not key.endswith("seed"))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    sys.exit(main(sys.argv[1:]))
