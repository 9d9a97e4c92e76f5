"""``python -m fedexp.report``: one HTML file of a sweep, a run, a reproduction or the committed results."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fedexp.errors import ConfigError
from fedexp.report import extra
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console
from fedexp.terminal.numbers import human_bytes

USAGE = """
python -m fedexp.report FOLDER [to=FILE]   the runs below a folder, a single run, or the results in multirun/results
python -m fedexp.report ENTRY [to=FILE]    a table or figure of a paper, as map/table1"""
DETAILS = """
The file is whole: it opens by a double click and fetches nothing. Without to=, it is FOLDER/report.html, or
multirun/<entry>.html of an entry.

  out=FOLDER      root of the run directories of an entry (multirun)
  results=FOLDER  the committed results (multirun/results)"""
NAME = "report.html"
OUT, RESULTS = "multirun", "multirun/results"


def main(argv: Sequence[str]) -> int:
    """Writes the report; returns the exit code."""
    return perform(lambda: _write(argv))


def _write(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m fedexp.report", usage=USAGE, epilog=DETAILS)
    parser.add_argument("what", metavar="FOLDER")
    for name, usual in (("to", ""), ("out", OUT), ("results", RESULTS)):
        parser.add_argument(f"--{name}", default=usual)
    given = parser.read(argv)
    for needed in (extra.pandas, extra.altair, extra.vl_convert, extra.jinja2):
        needed()
    to = Path(given.to) if given.to else _place(given.what, Path(given.out))
    if to.suffix != ".html":
        raise ConfigError(f"to={to} has to end in .html.")
    if given.to and not to.parent.is_dir():
        raise ConfigError(f"to={to}: there is no directory {to.parent}. Make it, or write elsewhere.")
    text = _report(given.what, Path(given.out), Path(given.results)).encode()

    from fedexp.system.files import write_atomically, writing

    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(to, text)
    open_console(highlight=False, markup=False).print(f"report    {to}, {human_bytes(len(text))}", soft_wrap=True)
    return 0


def _report(what: str, out: Path, committed: Path) -> str:
    from fedexp.report.html import sources
    from fedexp.report.html.document import rendered

    folder = Path(what)
    if not folder.is_dir():
        _check_entry(what)
        return rendered(sources.of_entry(what, out, committed))
    return rendered(
        sources.of_results(folder) if sources.holds_results(folder) else sources.of_folder(folder, committed)
    )


def _place(what: str, out: Path) -> Path:
    return Path(what) / NAME if Path(what).is_dir() else out / f"{what}.html"


def _check_entry(what: str) -> None:
    """Raises ``ConfigError`` if what is named is neither a folder nor like an entry of a paper."""
    from fedexp.reproduce.published import PAPERS

    if what.partition("/")[0] not in PAPERS:
        raise ConfigError(
            f"{what} is neither a folder nor a table or figure of a paper. Runs are in <out>/<name>, multirun/main by "
            "default; `python -m fedexp.reproduce list` names the tables, map/table1 for example."
        )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, without a traceback
    sys.exit(main(sys.argv[1:]))
