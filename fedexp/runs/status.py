"""Which runs are done, and how to go on with the others."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedexp import sweep
from fedexp.config import targets
from fedexp.config.compose import continuing, literal, overrides_of, title, without
from fedexp.config.identity import run_path
from fedexp.config.sources import Sources, conf_dir
from fedexp.errors import CheckpointError, ConfigError, DamagedError, FedexpError
from fedexp.runs.directory import RunDir
from fedexp.runs.names import CHECKPOINT, CLIENTS, CONFIG, LATEST, LOCK, OF_A_RUN, PREVIOUS
from fedexp.runs.plain import plain
from fedexp.runs.pointer import Pointer
from fedexp.runs.sweep_manifest import Manifest
from fedexp.system.files import reading
from fedexp.terminal.numbers import DASH, count

State = Literal["done", "running", "partial", "failed", "damaged", "missing"]
COLOURS: dict[State, str] = {
    "done": "green", "running": "cyan", "partial": "yellow", "failed": "red", "damaged": "red", "missing": "magenta",
}  # fmt: skip
PLAIN_CHOICE = r"[\w-][\w.-]*(/[\w-][\w.-]*)*"  # of a group: a file in its folder, or in one below
TAIL_BYTES = 1 << 16  # more than the last row of a table has


@dataclass(frozen=True)
class AnnouncedJob:
    """What a sweep knows of a run: its overrides, those that vary over the sweep, and why it failed the last time.

    ``leads_to`` is the directory of the run that the overrides start; None if that is not known.
    """

    overrides: list[str]
    leads_to: Path | None
    label: str
    error: str | None


@dataclass(frozen=True)
class Run:
    """One run as it stands."""

    path: Path
    state: State
    rounds: str
    label: str
    note: str = ""
    command: str = ""  # to go on with; empty where there is none


def show_status(folder: Path, console: Console) -> int:
    """Prints every run below a folder and the commands for the holes; 0 if everything is done."""
    runs, unreadable = _survey(folder)
    counts = Counter(run.state for run in runs)
    states = ", ".join(f"{counts[state]} {state}" for state in COLOURS if counts[state])
    console.print(": ".join(filter(None, [count(len(runs), "run"), states])))
    grid = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for run in runs:
        cells = (Text(plain(cell)) for cell in (run.rounds, run.path, run.label))
        grid.add_row(Text(run.state, COLOURS[run.state]), *cells)
    console.print(grid, soft_wrap=False)
    for run in (run for run in runs if run.state not in ("done", "running")):
        console.print(
            plain(f"{run.state}  {run.path.name}" + (f"  {run.note}" if run.note else "")), new_line_start=True
        )
        if run.command:
            console.print(f"  {plain(run.command)}")
    for complaint in unreadable:
        console.print(plain(complaint))
    return int(bool(unreadable) or any(run.state != "done" for run in runs))


def survey(folder: Path) -> list[Run]:
    """Every run below a folder, and those that sweeps there have announced.

    Raises:
        FedexpError: If there is no such folder, or nothing in it.
    """
    return _survey(folder)[0]


def _survey(folder: Path) -> tuple[list[Run], list[str]]:
    """The runs, and what is wrong with manifests."""
    folder = Path(os.path.normpath(folder))
    if not folder.is_dir():
        raise FedexpError(f"{folder} is not a folder. Runs are in <out>/<name>, multirun/main by default.")
    found, manifests = _walk(folder)
    known: dict[Path, AnnouncedJob] = {}
    unreadable: list[str] = []
    for file in sorted(manifests):
        try:
            known |= _announced(file)
        except DamagedError as damage:
            unreadable.append(str(damage))
    if not (known or found or unreadable):
        raise FedexpError(
            f"There is no run and no sweep in {folder}. Runs are in <out>/<name>, multirun/main by default."
        )
    alone = sorted(found - known.keys())
    announced = (_look(path, job, path in found) for path, job in known.items())
    return [*announced, *(_look(path) for path in alone)], unreadable


def manifests(folder: Path) -> list[Manifest]:
    """The sweeps that were announced below a folder, as far as they can be read."""
    found: list[Manifest] = []
    for file in sorted(_walk(folder)[1]):
        with suppress(DamagedError):
            found.append(Manifest.read(file))
    return found


def _walk(folder: Path) -> tuple[set[Path], list[Path]]:
    """The run directories and the manifests below a folder. Of symbolic links, only those to run directories count."""
    runs: set[Path] = set()
    manifests: list[Path] = []
    for here, folders, files in os.walk(folder):
        if _holds_run((*files, *folders)):
            runs.add(Path(here))
            folders.clear()  # its checkpoint may have thousands of files
        else:
            manifests += [Path(here, name) for name in files if re.fullmatch(r"sweep-.*\.json", name)]
            links = (path for name in folders if (path := Path(here, name)).is_symlink())
            runs |= {link for link in links if os.access(link, os.R_OK) and _holds_run(p.name for p in link.iterdir())}
    return runs, manifests


def _holds_run(names: Iterable[str]) -> bool:
    """Whether a folder with these names in it is the directory of a run: one that has begun has two files at least."""
    return sum(name != LOCK and OF_A_RUN.fullmatch(name) is not None for name in names) > 1


def _announced(file: Path) -> dict[Path, AnnouncedJob]:
    """What a manifest says of its jobs, by the directories of their runs."""
    jobs: dict[Path, AnnouncedJob] = {}
    manifest = Manifest.read(file)
    errors = {job.number: job.error for job in sweep.collect(manifest.reports) if job.status == "failed"}
    everywhere = set.intersection(*(set(job.overrides) for job in manifest.jobs))
    for number, job in enumerate(manifest.jobs):
        label = " ".join(o for o in job.overrides if o not in everywhere)
        leads_to = manifest.written_to and manifest.written_to / job.path
        path = Path(os.path.normpath(manifest.folder / job.path))
        jobs[path] = AnnouncedJob(job.overrides, leads_to, label, errors.get(number))
    return jobs


# ---------------------------------------------------------------- one run
def _look(path: Path, job: AnnouncedJob | None = None, begun: bool = True) -> Run:  # noqa: FBT001, FBT002
    """A run, and what is in the way of writing it."""
    run, obstacle = _on_file(path, job, begun=begun), _obstacle(path) if os.path.lexists(path) else ""
    if not obstacle:
        return run
    if run.state == "done":
        return replace(run, label=f"{run.label} ({obstacle})")
    return replace(run, state="damaged", note=_joined(f"{obstacle}. Move it elsewhere.", run.note), command="")


def _obstacle(path: Path) -> str:
    """What a run refuses to write to, also with ``force=true``; empty if nothing does."""
    checkpoint = path / CHECKPOINT
    if link := next((place for place in (path, checkpoint) if place.is_symlink()), None):
        return f"{link} is a symbolic link, to which no run is written"
    return f"{checkpoint} is a file, where a folder belongs" if checkpoint.is_file() else ""


def _on_file(path: Path, job: AnnouncedJob | None, *, begun: bool) -> Run:
    label, error = (job.label, job.error) if job else ("", None)
    if not begun:
        note, command = _remedy(path, job, None)
        return Run(path, "failed" if error else "missing", DASH, label, _joined(error, note), command)
    try:
        return _seen(RunDir(path), job)
    except CheckpointError as damage:
        try:
            note, command = _remedy(path, job, RunDir(path).config(), "force=true")
        except DamagedError:
            note, command = "", ""
        return Run(path, "damaged", "?", label, _joined(damage, note), command)


def _seen(rundir: RunDir, job: AnnouncedJob | None) -> Run:
    holder = rundir.holder()
    result = None if holder else rundir.result()
    if result:
        rounds = result.get("rounds")
        return Run(rundir.path, "done", f"{rounds}/{rounds}", (job and job.label) or str(result.get("title")))
    config, described, total = _described(rundir)
    label = (job and job.label) or described
    if holder:
        return Run(rundir.path, "running", f"{_last_round(rundir)}/{total}", label, holder)
    error = rundir.error()
    kept, damage = _kept(rundir)
    note, command = _remedy(rundir.path, job, config)
    return Run(
        rundir.path, "failed" if error else "partial", f"{kept}/{total}", label, _joined(error, damage, note), command
    )


def _described(rundir: RunDir) -> tuple[dict[str, Any], str, int]:
    """The settings of a run, its title and its rounds."""
    config = rundir.config()
    if config is None:
        raise DamagedError(f"{rundir.path / CONFIG} is missing.")
    try:
        return config, title(config), int(config["rounds"])
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        raise DamagedError(f"{rundir.path / CONFIG} is damaged: it has no usable {cause}.") from cause


def _last_round(rundir: RunDir) -> str:
    """The last round of which the running process has written something."""
    try:
        with reading(rundir.path / CLIENTS) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            *_, last = file.read().splitlines()
    except (DamagedError, ValueError):  # not begun
        return "0"
    found = last.partition(b",")[0].decode(errors="replace")
    return found if found.isdecimal() else "0"


def _kept(rundir: RunDir) -> tuple[int, str]:
    """The rounds that need not be run again, and what is wrong with the last checkpoint if it is the one before.

    Raises:
        CheckpointError: If there are checkpoints, and none of them is of use.
    """
    folder = rundir.path / CHECKPOINT
    pointers = [folder / name for name in (LATEST, PREVIOUS) if os.path.lexists(folder / name)]
    damage: list[str] = []
    for path in pointers:
        try:
            pointer = Pointer.read(path)
            rundir.check(pointer.written)
            _demand_tensors(folder, pointer)
        except DamagedError as error:
            damage.append(str(error))
        else:
            return pointer.round, " ".join(damage)
    if pointers:
        raise DamagedError(" ".join(dict.fromkeys(damage)))
    return 0, ""


def _demand_tensors(folder: Path, pointer: Pointer) -> None:
    for name in sorted(pointer.names):
        if (folder / name).is_symlink() or not (folder / name).is_file():
            raise DamagedError(f"{folder / name} is missing or not a file.")


# ---------------------------------------------------------------- how to go on
def _remedy(path: Path, job: AnnouncedJob | None, config: dict[str, Any] | None, *more: str) -> tuple[str, str]:
    """What else there is to say, and the command that goes on with a run; empty where there is none."""
    if job is None and config is None:
        return "", ""
    try:
        _demand_own_choices(job, config or {})
        overrides = _aimed(job.overrides, job.leads_to, path) if job else _overrides(config or {}, path)
    except ConfigError as cause:
        return f"No command is shown. {cause}", ""
    except ValueError as cause:  # a name that no file can have
        return f"No command is shown. There can be no such directory ({cause}).", ""
    if doubtful := next((o for o in overrides if not harmless(o)), None):
        return f"No command is shown, since {doubtful!r} might run code: give the one that started the run again.", ""
    return "", shlex.join(["python", "-m", "fedexp", *continuing(overrides), *more])


def _demand_own_choices(job: AnnouncedJob | None, config: dict[str, Any]) -> None:
    """Raises ``ConfigError`` if a run has a choice for which there is no file of ours or of an installed package."""
    pairs = (override.partition("=")[::2] for override in (job.overrides if job else ()))
    chosen = {
        group: choice for group, choice in pairs if (conf_dir() / group).is_dir() and harmless(f"{group}={choice}")
    }
    chosen |= config["choices"] if isinstance(config.get("choices"), dict) else {}
    files = [(group, name) for group, choice in chosen.items() for name in _names(group, str(choice))]
    for group, name in files:
        if not (re.fullmatch(PLAIN_CHOICE, name) and _is_file(f"{group}/{name}.yaml")):
            raise ConfigError(
                f"{group}={name} is not a choice of fedexp itself or of an installed package: give the command that "
                "started the run again, with the --config-dir that has it."
            )


def _names(group: str, choice: str) -> list[str]:
    """The names of the files that are chosen; of some groups these may be several, ``[a,b]``."""
    several = group in targets.SEVERAL and re.fullmatch(r"\[.*\]", choice)
    return [name.strip() for name in choice[1:-1].split(",") if name.strip()] if several else [choice]


def _is_file(name: str) -> bool:
    return any((folder / name).is_file() for folder in Sources().folders())


def _overrides(config: dict[str, Any], path: Path) -> list[str]:
    """The overrides that a run's settings amount to, in the directory where the run is."""
    try:
        overrides, leads_to = overrides_of(config), run_path(config)
    except (KeyError, TypeError, AttributeError, ValueError) as cause:
        raise ConfigError(f"{CONFIG} is not what a run writes ({cause}).") from cause
    except ConfigError as cause:
        raise ConfigError(f"Its settings are no longer those of this version: {cause}") from cause
    return _aimed(overrides, leads_to, path)


def _aimed(overrides: list[str], leads_to: Path | None, path: Path) -> list[str]:
    """Overrides that start the run in the directory where it is, which may have been copied or moved.

    Raises:
        ConfigError: If none can, since the directory has the name of another run.
    """
    if leads_to and os.path.realpath(leads_to) == os.path.realpath(path):
        return overrides
    if leads_to and leads_to.name != path.name:
        raise ConfigError(
            f"Its settings lead to a directory named {leads_to.name}: this one was copied or renamed, or is of another "
            "version."
        )
    folder = path.parent.resolve()
    others = without(overrides, "out", "name")
    return [*others, f"out={literal(str(folder.parent))}", f"name={literal(folder.name)}"]


def harmless(override: str) -> bool:
    """Whether an override from a file can be shown to be pasted: it sets a value, and does not name code or configs."""
    key, _, value = override.lstrip("+~").partition("=")
    if not re.fullmatch(r"(?!hydra\b)\w[\w./-]*", key) or "_target_" in override or plain(override) != override:
        return False
    return not (conf_dir() / key).is_dir() or all(re.fullmatch(PLAIN_CHOICE, name) for name in _names(key, value))


def _joined(*notes: object) -> str:
    return " ".join(str(note) for note in notes if note)
