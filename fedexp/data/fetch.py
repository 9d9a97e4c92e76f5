"""Getting files that are not there, and saying how to get them when that fails."""

from __future__ import annotations

import gzip
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedexp.data.catalog import CATALOG
from fedexp.data.entry import CatalogEntry, Download
from fedexp.data.formats import unpack_tar
from fedexp.data.verify import verify
from fedexp.errors import DataError
from fedexp.system import scratch
from fedexp.terminal.console import open_console

if TYPE_CHECKING:
    from requests import Response

ANSWER_SECONDS = 4.0  # how long a host may take to answer at all
STALL_SECONDS = 30.0  # how long a running download may stand still
CHUNK = 1 << 18
RETRIES = 1  # of a download that broke off, or brought something else

Way = Callable[[str, CatalogEntry, Path, Progress], None]
"""Gets a data set's files into a folder, laid out as below the root."""


def obtain(name: str, root: Path, *, download: bool) -> tuple[Path, ...]:
    """Returns a data set's files, downloaded if need be and allowed; raises ``DataError`` with the ways to get them."""
    entry = CATALOG[name]
    if (files := entry.find(root)) is not None:
        return files
    if not download:
        raise DataError(advice(name, root, "data.download=false"))
    if not entry.downloads:
        raise DataError(advice(name, root, "there is nothing to download it from"))
    if not any(map(answers, hosts(entry).values())):
        raise DataError(advice(name, root, f"tried, but none of {', '.join(hosts(entry))} answered"))
    try:
        with _alone(root / f".fedexp-{name}.lock"):
            return entry.find(root) or install(name, root, downloaded)  # another process may have been faster
    except (OSError, DataError) as error:
        raise DataError(advice(name, root, f"tried, but failed: {' '.join(str(error).split())}")) from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; those that waited find the data there, or fail in their turn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def install(name: str, root: Path, way: Way) -> tuple[Path, ...]:
    """Gets a data set's files in the given way, verifies them and moves them below the root, in whole files or folders.

    A progress bar is shown where the standard error stream is a terminal.
    """
    entry = CATALOG[name]
    root.mkdir(parents=True, exist_ok=True)
    console = open_console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with scratch.folder(f".fedexp-{name}-", root) as new:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            way(name, entry, new, progress)
        files = entry.find(new)
        if files is None:
            raise DataError(f"{name} lacks {', '.join(str(p.relative_to(new)) for p in entry.missing(new))}")
        verify(name, files)
        for path in new.iterdir():
            _move(path, root / path.name)
    return entry.find(root) or ()


def _move(source: Path, target: Path) -> None:
    """Moves a file or a folder in one step; a folder that is there already is filled."""
    if source.is_dir() and target.is_dir():
        for path in source.iterdir():
            _move(path, target / path.name)
    else:
        source.replace(target)


def advice(name: str, root: Path, reason: str, *, tried: bool = False) -> str:
    """What is missing, and every way to get it but the one that was just tried."""
    entry = CATALOG[name]
    paths = [str(path) for path in entry.missing(root)]
    missing = f"{', '.join(paths)} {'are' if paths[1:] else 'is'} not there"
    others = f" (nor {', nor '.join(entry.alternatives()[1:])})" if len(entry.places) > 1 else ""
    ways = [
        "name a folder that holds it in this layout, with data.root=<folder> or the environment variable FEDEXP_DATA"
    ]
    if (entry.downloads or entry.package) and not tried:
        ways.append(f"run python -m fedexp.data fetch {name}")
    if entry.downloads:
        ways.append(f"use data.download=true where {' or '.join(hosts(entry))} can be reached (here: {reason})")
    if entry.how:
        ways.append(entry.how)
    listed = "; ".join(f"({i}) {way}" for i, way in enumerate(ways, 1))
    return f"{entry.title} is not complete: {missing}{others}. Either {listed}."


def hosts(entry: CatalogEntry) -> dict[str, str]:
    """The hosts a data set can be downloaded from, each with an address there."""
    return {url.split("/")[2]: url for item in entry.downloads for url in item.urls}


def answers(url: str, seconds: float = ANSWER_SECONDS) -> bool:
    """Says within ``seconds`` whether the host of ``url`` answers.

    In a thread, because looking up a name has no time limit of its own.
    """
    heard = threading.Event()

    def ask() -> None:
        try:
            head(url, seconds)
        except UnencryptedError:
            heard.set()  # it is asked, and refused, later
        except OSError:
            return
        heard.set()  # whatever the status: a refusal is an answer too

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return heard.is_set()


# ---------------------------------------------------------------- downloading
class UnencryptedError(OSError):
    """An address, or one that it leads to, is not https."""


def head(url: str, seconds: float) -> None:
    """Asks for a file's headers."""
    import requests

    _demand_https(url)
    requests.head(url, timeout=seconds, allow_redirects=True, hooks={"response": _as_published})


def _as_published(response: Response, **_: object) -> None:
    """Follows no redirection away from https, and keeps compressed files as they are, for their checksums."""
    if response.is_redirect:
        _demand_https(urljoin(response.url, response.headers["location"]))
    response.raw.headers.pop("Content-Encoding", None)


def _demand_https(url: str) -> None:
    if not url.startswith("https://"):
        raise UnencryptedError(f"{url} is not https")


def downloaded(name: str, entry: CatalogEntry, folder: Path, progress: Progress) -> None:
    """Downloads a data set's files, compares them with their checksums and unpacks them: a ``Way``."""
    for item in entry.downloads:
        archive = folder / f".{item.md5}"
        faults: list[str] = []
        for url in filter(answers, item.urls):
            fault = _transfer(url, archive, item.checksums, progress)
            if fault is None:
                break
            faults.append(fault)
        else:
            raise DataError(f"{name}: {'; '.join(faults) or f'nobody answers for {item.urls[0]}'}")
        _unpack(archive, item, folder, {Path(p).name for place in entry.places for p in place})
        archive.unlink()


def _transfer(url: str, target: Path, checksums: Mapping[str, str], progress: Progress) -> str | None:
    """Downloads one file and compares it with the best of its checksums; returns what went wrong."""
    import pooch

    pooch.get_logger().setLevel("ERROR")  # it would name every file
    kind, checksum = [*checksums.items()][-1]
    files = pooch.create(
        path=target.parent, base_url="", urls={target.name: url}, registry={target.name: f"{kind}:{checksum}"},
        retry_if_failed=RETRIES,
    )  # fmt: skip
    bar = _Bar(progress, url.rpartition("/")[2])
    try:
        _demand_https(url)
        files.fetch(
            target.name,
            downloader=pooch.HTTPDownloader(
                progressbar=bar, chunk_size=CHUNK, timeout=STALL_SECONDS, hooks={"response": _as_published}
            ),
        )
    except (ValueError, OSError) as error:  # another checksum; whatever a network does
        return f"{url}: {error}"
    return None


class _Bar:
    """A bar of rich's as pooch wants it."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._task = progress, progress.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.reset(self._task, total=size or None)

    def update(self, count: int) -> None:
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        pass


def _unpack(archive: Path, item: Download, folder: Path, wanted: set[str]) -> None:
    target = folder / item.to
    target.parent.mkdir(parents=True, exist_ok=True)
    kind = item.urls[0].rpartition("/")[2]
    if kind.endswith(".tar.gz"):
        unpack_tar(archive, target)
    elif kind.endswith(".zip"):
        target.mkdir(exist_ok=True)
        with zipfile.ZipFile(archive) as zipped:
            for member in (m for m in zipped.namelist() if m.rpartition("/")[2] in wanted):
                with zipped.open(member) as source, (target / member.rpartition("/")[2]).open("wb") as sink:
                    shutil.copyfileobj(source, sink)
    elif kind.endswith(".gz"):
        with gzip.open(archive) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    else:
        archive.rename(target)
        archive.touch()
