"""``python -m fedexp.track sync TRACKER FOLDER``: mirrors of runs that are on disk."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedexp.config import targets
from fedexp.config.compose import composed
from fedexp.errors import ConfigError
from fedexp.terminal.command import perform
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import count

USAGE = """\
usage: python -m fedexp.track sync TRACKER FOLDER [KEY=VALUE ...]

Mirrors all runs below a folder: TRACKER is wandb, tensorboard, trackio or lightning, KEY=VALUE its settings
(project=thesis is tracker.wandb.project=thesis of a run; without it, the project and entity that the run was started
with). What the mirror has already is not added twice, so the command can be given again at any time: after a failure, a
resumed run, more runs. Exits with 1 if a run could not be mirrored."""
WHERE = ("project", "entity")  # settings of a tracker that say where runs are mirrored


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit code."""
    return perform(lambda: _sync(argv))


def _sync(argv: Sequence[str]) -> int:
    console = open_console(highlight=False, markup=False, soft_wrap=True)
    if {"-h", "--help"} & set(argv):
        console.print(USAGE)
        return 0
    words = [a for a in argv if "=" not in a]
    if len(words) != 3 or words[0] != "sync":
        raise ConfigError(f"Which tracker, and which runs?\n{USAGE}")
    make = _maker(words[1], [a for a in argv if "=" in a])
    make({})  # wrong settings are told before any run is read

    from fedexp.track.from_disk import sync

    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    failed = done = 0
    for run in sync(Path(words[2]), make):
        failed, done = failed + bool(run.trouble), done + (not run.trouble)
        said = f"not mirrored: {run.trouble}" if run.trouble else count(run.rows, "row")
        console.print(f"{run.path}  {run.title}  {said}")
    console.print(f"{count(done, 'run')} mirrored to {words[1]}" + (f", {failed} not" if failed else ""))
    return int(failed > 0)


def _maker(name: str, given: Sequence[str]) -> Callable[[Mapping[str, Any]], Any]:
    """What makes the tracker for a run, with these settings, checked as those of a run are.

    A run is mirrored where it was to be, unless something else is asked for. Nothing else is taken from its files,
    which may be somebody else's.
    """
    if name in ("none", "null"):
        raise ConfigError(f"tracker={name} mirrors nothing. Choose another.")
    if not re.fullmatch(r"[\w-]+", name):
        raise ConfigError(f"{name} is not the name of one tracker. For several, give the command once for each.")
    overrides = [_override(name, each) for each in given]
    (node,) = composed([f"tracker={name}", *overrides])["tracker"].values()
    settings = {key: value for key, value in node.items() if key != "_target_"}
    asked = {override.partition("=")[0].rpartition(".")[2] for override in overrides}

    def make(config: Mapping[str, Any]) -> Any:
        own = (config.get("tracker") or {}).get(name) or {}
        where = {key: own[key] for key in {*WHERE} & {*settings} - asked if isinstance(own.get(key), str)}
        return targets.load(node["_target_"])(**{**settings, **where})

    return make


def _override(name: str, given: str) -> str:
    """A setting of the tracker as a run has it."""
    sign = given[: len(given) - len(given.lstrip("+~"))]
    own = given.lstrip("+~").removeprefix(f"tracker.{name}.")
    return f"{sign}tracker.{name}.{own}"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    sys.exit(main(sys.argv[1:]))
