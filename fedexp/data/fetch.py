"""Getting files that are not there, and saying how to get them when that fails."""

from __future__ import annotations

import io
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from fedexp.data.layout import Layout
from fedexp.errors import DataError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 4.0  # how long a host may take to answer at all
STALL_SECONDS = 30.0  # how long a running download may stand still


def obtain(name: str, root: Path, layout: Layout, *, download: Callable[[], object] | None) -> None:
    """Makes the files of ``layout`` exist, or raises a ``DataError`` that names them and the ways to get them.

    Args:
        name: The data set's name, for the messages.
        root: The folder the files belong below.
        layout: The files.
        download: Downloads and unpacks them; None if the user does not want that.
    """
    if not layout.missing():
        return
    reason = "data.download=false" if download is None else _try(name, root, layout, download)
    if missing := layout.missing():
        raise DataError(_advice(name, root, layout, missing, reason))


def _try(name: str, root: Path, layout: Layout, download: Callable[[], object]) -> str:
    """Downloads and returns what went wrong, in words; empty if nothing did."""
    unpacked_locally = all(path.is_file() for path in layout.archives)
    if not unpacked_locally and not any(answers(url) for url in layout.urls):
        return f"tried, but none of its {len(layout.urls)} address(es) answered"
    log.info("downloading %s into %s", name, root)
    try:
        with _quiet(), _stall_limit(STALL_SECONDS):
            download()
    except Exception as error:  # whatever the network, the disk or an archive came up with: it is reported below
        return f"tried, but failed with {type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def answers(url: str, seconds: float = ANSWER_SECONDS) -> bool:
    """Says within ``seconds`` whether the host of ``url`` answers.

    In a thread, because looking up a name has no time limit of its own.
    """
    heard = threading.Event()

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - torchvision's own addresses
            urllib.request.urlopen(request, timeout=seconds).close()  # noqa: S310
        except urllib.error.HTTPError:
            heard.set()  # a refusal is an answer too
        except OSError:
            return
        heard.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return heard.is_set()


def _advice(name: str, root: Path, layout: Layout, missing: list[Path], reason: str) -> str:
    names = ", ".join(str(path.relative_to(root)) for path in missing)
    return (
        f"{name} is not complete in {root}: {len(missing)} of {len(layout.files)} files are missing ({names}). "
        f"Either name a folder that holds them in this layout, with data.root=<folder> or the environment variable "
        f"FEDEXP_DATA=<folder>; or, on a machine with a network, use data.download=true, which lets torchvision fetch "
        f"them from {' or '.join(layout.urls)} (here: {reason or 'the download did not bring them'})."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Swallows torchvision's prints and progress bars."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _stall_limit(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
