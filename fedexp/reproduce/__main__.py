"""``python -m fedexp.reproduce``: tables and figures of the papers, run here and shown beside the published ones."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console

from fedexp.config.settings import leaves
from fedexp.config.sources import conf_dir
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.reproduce import published
from fedexp.reproduce.entry import Entry
from fedexp.reproduce.request import TUNE, Request, every_scene, request
from fedexp.reproduce.results import known_results, merged
from fedexp.reproduce.show import FORMATS, Display
from fedexp.system import signals
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

PROGRAM = "python -m fedexp.reproduce"
USAGE = f"""
{PROGRAM} list             all tables and figures: runs, time on this machine, state
{PROGRAM} ENTRY            runs what is missing of a table, and shows it: map/table1
{PROGRAM} status [ENTRY]   the tables as they stand, with the commands that fill holes; trains nothing
{PROGRAM} export ENTRY     puts results of this machine's runs among the committed ones
{PROGRAM} claims           what the papers claim, and whether our runs agree
{PROGRAM} page             writes the page of all results"""
DETAILS = """
Without more, ENTRY means all of the paper's settings, methods, seeds and rounds, with one setting of
hyper-parameters (tune=none). It begins with the first seed of the cheapest setting; look before with plan=true.

  settings=A,B    some of the entry's settings, fmnist/* as well        standins=true   its stand-in scenes instead
  methods=A,B     some of its methods                                   tune=paper      each setting the paper tried
  seeds=0,1,2     these seeds                                           rounds=50       fewer rounds: a reduced table
  plan=true       say what would run and how long, run nothing          out=FOLDER      root of the run directories
  format=F        terminal, markdown, latex or csv                      to=FILE         where the table is written
  results=FOLDER  the committed results (multirun/results)              figure=FILE     .html, .svg, .png or .pdf

Anything else is passed to each run or to Hydra: loop=fabric executor=serial hydra/launcher=joblib.
status exits with 0 if nothing that is asked for is missing, shorter than the paper's, failed, below or different;
wrong input is 2, other trouble 1."""
NARROWING = ("settings", "methods", "seeds", "rounds", "tune", "standins", "out", "results")
SHOWING = ("format", "to")
OPTIONS = {
    "run": (*NARROWING, *SHOWING, "plan", "figure"),
    "status": (*NARROWING, *SHOWING),
    "export": NARROWING,
    "list": ("out", "results"),
    "claims": ("results", "out", "format", "to"),
    "page": ("results", "to"),
}
USED = {  # by kinds of entries that no training gives: options and settings that make a difference
    "text": ((), ()),
    "count": (SHOWING, ("data.",)),
    "partition": (("settings", "standins", "seeds"), ("",)),
}
PLACES = ("out", "results")
RESULTS = "multirun/results"
WIDTH_WITHOUT_TERMINAL = 160  # columns


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit code."""
    return perform(lambda: _perform(argv))


def _perform(argv: Sequence[str]) -> int:
    words = [a for a in argv if "=" not in a and not a.startswith(("-", "~"))]
    command = words[0] if words and words[0] in OPTIONS and words[0] != "run" else "run"
    names = words if command == "run" else words[1:]
    given, overrides = _read(command, [a for a in argv if a not in words])
    entry = _entry(command, names)
    console = open_console(highlight=False, markup=False, width_without_terminal=WIDTH_WITHOUT_TERMINAL)
    return COMMANDS[command](given, overrides, entry, console)


def _read(command: str, arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The options of a command, and what is to be passed on."""
    parser = Parser(prog=PROGRAM, usage=USAGE, epilog=DETAILS)
    for name in OPTIONS[command]:
        parser.add_argument(f"--{name}", default="")
    if "plan" in OPTIONS[command]:
        parser.add_argument("--dry", dest="plan", action="store_const", const="true")
    given, rest = parser.read_known(arguments)
    for argument in arguments:  # such as seeds=$SEEDS, which would otherwise be the whole table
        key, sign, value = argument.lstrip("-").partition("=")
        if key in OPTIONS[command] and sign and not value:
            raise ConfigError(f"{key}= has no value. Give one, or leave it out.")
    _check_passed_on(command, rest)
    return given, rest


def _check_passed_on(command: str, rest: Sequence[str]) -> None:
    """Refuses what is neither an option of a command nor can be a setting of its runs."""
    passes_on = "settings" in OPTIONS[command]
    others = tuple(f"{name}=" for names in OPTIONS.values() for name in names)  # of the other commands
    if wrong := next((a for a in rest if not passes_on or "=" not in a or a.startswith(others)), None):
        known = [f"{name}=…" for name in OPTIONS[command]]
        what = "a table or figure" if command == "run" else command
        raise ConfigError(f"{wrong}: {what} takes no such argument. It takes {', '.join(known)}.")
    for key in (a.partition("=")[0] for a in rest):
        near = get_close_matches(key, OPTIONS[command], n=1, cutoff=0.75)
        if near and key not in _run_keys():
            raise ConfigError(f"{key} is not known here. Did you mean {near[0]!r}?")


def _run_keys() -> set[str]:
    """Groups and settings of a run, by the first part of their keys."""
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    return {key.partition(".")[0] for key, _ in leaves()} | groups


def _entry(command: str, names: Sequence[str]) -> Entry | None:
    if names and "/" not in names[0]:
        known = [*(name for name in OPTIONS if name != "run"), *published.entries()]
        raise ConfigError(f"{names[0]}: there is no such command or entry. {nearest(names[0], known)}")
    if len(names) > 1:
        raise ConfigError(f"{names[1]}: one entry at a time. Give a command for each.")
    if not names:
        if command in ("run", "export"):
            raise ConfigError(f"Which table? Name one, as map/table1; `{PROGRAM} list` shows all.{USAGE}")
        return None
    if command in ("list", "claims", "page"):
        raise ConfigError(f"{names[0]}: {command} is about all entries. Leave it out.")
    return published.entry(names[0])


def _request(given: Namespace, overrides: Sequence[str], entry: Entry, *, usual: str = "") -> Request:
    """What is asked for; ``usual`` are the settings if none is named, the paper's by default."""
    from fedexp.reproduce.jobs import checked

    asked = request(
        entry,
        settings=given.settings or ("" if given.standins else usual),
        methods=given.methods,
        seeds=given.seeds,
        rounds=given.rounds,
        tune=given.tune or TUNE[0],
        stand_ins=_truth("standins", given.standins),
        out=given.out,
        overrides=overrides,
    )
    return checked(asked)


def _refuse_unused(given: Namespace, overrides: Sequence[str], entry: Entry) -> None:
    """Refuses what says how an entry is to be run, if it is not run but computed, or there is nothing to compute."""
    if entry.kind in USED:
        options, settings = USED[entry.kind]
        others = (key for key in (*NARROWING, *SHOWING) if key not in (*options, *PLACES))
        named = [f"{key}={getattr(given, key)}" for key in others if getattr(given, key, "")]
        named += [override for override in overrides if not override.startswith(settings)]
        if named:
            raise ConfigError(f"{named[0]}: nothing is trained for {entry.id}, so this has no effect. Leave it out.")


def _truth(key: str, text: str) -> bool:
    if text not in ("", "true", "false"):
        raise ConfigError(f"{key}={text}: this must be true or false.")
    return text == "true"


def _display(given: Namespace, console: Console) -> Display:
    form = given.format or FORMATS[0]
    if form not in FORMATS:
        raise ConfigError(f"format={form}: there is no such format. {nearest(form, FORMATS)}")
    return Display(console, form, Path(given.to) if given.to else None)


def _results(given: Namespace) -> Path:
    folder = Path(given.results or RESULTS)
    if given.results and not folder.is_dir():
        raise ConfigError(f"results={folder}: there is no such folder. Name the one with the csv files of results.")
    return folder


# ---------------------------------------------------------------- commands
def _run(given: Namespace, overrides: Sequence[str], entry: Entry | None, console: Console) -> int:
    assert entry is not None  # noqa: S101 - see _entry
    _refuse_unused(given, overrides, entry)
    if given.figure:
        from fedexp.reproduce.figure import check_figure

        check_figure(entry.id, Path(given.figure))
        if not entry.scenes:
            return _draw(given, overrides, entry, console)
    asked, display, dry = _request(given, overrides, entry), _display(given, console), _truth("plan", given.plan)
    if (answer := _without_runs(asked, _results(given), display)) is not None:
        return answer
    with signals.raise_on_signal():
        try:
            from fedexp.reproduce.run import run

            code = run(asked, _results(given), display, console, dry=dry)
            return code if dry or not given.figure else code or _draw(given, overrides, entry, console)
        except KeyboardInterrupt as told:
            submitted = any("slurm" in o or "submitit" in o for o in asked.launcher)
            note = " What was submitted goes on; scancel --name=fedexp stops it." if submitted else ""
            console.print(
                f"Stopped; nothing is lost.{note} This runs what is missing:\n  {asked.command}", soft_wrap=True
            )
            return signals.exit_code(told)


def _draw(given: Namespace, overrides: Sequence[str], entry: Entry, console: Console) -> int:
    """Draws the figure of an entry from its own runs, or from those of the tables that it is drawn from."""
    from fedexp.reproduce.figure import draw
    from fedexp.reproduce.local import begun

    sources = [entry] if entry.scenes else [published.entry(name) for name in entry.depends_on]
    jobs = [job for each in sources for job in begun(_request(given, overrides, each))]
    made = draw(entry.id, [job.path for job in jobs], Path(given.figure))
    console.print(f"figure    {given.figure}\n          {made.caption}", soft_wrap=True)
    return 0


def _without_runs(asked: Request, committed: Path, display: Display) -> int | None:
    """Answers for an entry that needs no run; None if it needs some."""
    entry = asked.entry
    if entry.kind == "text":
        display.console.print(f"{entry.id}: {entry.title}. There is nothing to compute.", soft_wrap=True)
        return 0
    if entry.kind == "count":
        from fedexp.reproduce.counts import counted

        return int(not display(asked, merged(known_results(committed, entry.id), counted(entry, asked.overrides))))
    if entry.kind == "partition":
        from fedexp.data.show import main as show

        if not asked.any_seed and len(asked.seeds) > 1:
            raise ConfigError(f"seeds={','.join(map(str, asked.seeds))}: a partition is shown for one seed. Name one.")
        seeds = [] if asked.any_seed else [f"seed={asked.seeds[0]}"]
        return show([f"experiment={scene.experiment}" for scene in asked.scenes] + seeds + list(asked.overrides))
    if not entry.scenes:
        sources = f"; it is drawn from the runs of {' and '.join(entry.depends_on)}" if entry.depends_on else ""
        display.console.print(f"{entry.id}: {entry.title}. It has no runs of its own{sources}.", soft_wrap=True)
        return 0
    if entry.kind == "probe":
        display.console.print(
            f"{entry.id} shows what probes observe ({', '.join(entry.probes)}). The table has the main numbers; all of "
            "them are in probes.jsonl and probes/ of each run directory.", soft_wrap=True,
        )  # fmt: skip
    return None


def _status(given: Namespace, overrides: Sequence[str], entry: Entry | None, console: Console) -> int:
    from fedexp.reproduce.status import show_status

    display = _display(given, console)
    narrow = [key for key in ("settings", "methods", "seeds", "rounds", "standins", "to") if getattr(given, key)]
    if entry is None and (narrow := [*narrow, *overrides]):
        raise ConfigError(f"{narrow[0]}: this needs one entry. Name it, as in `{PROGRAM} status map/table1`.")
    if entry:
        _refuse_unused(given, overrides, entry)
    known = [entry] if entry else published.entries().values()
    asked = [_request(given, overrides, each, usual=every_scene(each)) for each in known]
    return show_status(asked, _results(given), display, every=entry is None)


def _export(given: Namespace, overrides: Sequence[str], entry: Entry | None, console: Console) -> int:
    from fedexp.reproduce.status import export

    assert entry is not None  # noqa: S101 - see _entry
    _refuse_unused(given, overrides, entry)
    return export(_request(given, overrides, entry, usual=every_scene(entry)), Path(given.results or RESULTS), console)


def _list(given: Namespace, _: Sequence[str], __: Entry | None, console: Console) -> int:
    from fedexp.reproduce.listing import show_list

    show_list(_results(given), Path(given.out or Request.out), console)
    return 0


def _claims(given: Namespace, _: Sequence[str], __: Entry | None, console: Console) -> int:
    from fedexp.reproduce.overview import show_claims

    show_claims(_results(given), Path(given.out or Request.out), _display(given, console))
    return 0


def _page(given: Namespace, _: Sequence[str], __: Entry | None, console: Console) -> int:
    from fedexp.reproduce.overview import make_page

    make_page(_results(given), Path(given.to) if given.to else None, console)
    return 0


Command = Callable[[Namespace, Sequence[str], Entry | None, Console], int]
COMMANDS: dict[str, Command] = {
    "run": _run, "status": _status, "export": _export, "list": _list, "claims": _claims, "page": _page,
}  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback, until runs begin
    sys.exit(main(sys.argv[1:]))
