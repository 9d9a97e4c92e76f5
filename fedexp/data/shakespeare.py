"""The next character of a speaking role's text, from LEAF's files or from the complete works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedexp.data.by_user import Users, divided, federation
from fedexp.data.cache import cached
from fedexp.data.catalog import CATALOG
from fedexp.data.fetch import obtain
from fedexp.data.leaf import read_leaf
from fedexp.data.shakespeare_text import roles
from fedexp.data.source import Loaded
from fedexp.errors import DataError

LENGTH = 80  # characters that are seen before the one to guess
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80
UNKNOWN = len(VOCABULARY)

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shakespeare:
    """80 characters of a role's text as numbers, and the 81st as the class. Caldas et al., LEAF, arXiv 1812.01097.

    Every owner is a role of a play. A role's windows move on by one character; where LEAF has not divided them, the
    first 80 % are for training and the rest for testing, so that no character to guess is in both.

    Deviations: A character outside LEAF's 80 is number 80, so that there are 81 classes as in FedRS, table 2; LEAF's
        own code takes the last character for it. LEAF's present script leaves out the 79 windows behind the training
        windows, and so every role with fewer than some 400; FedRS has all 1,129 roles and a full fifth of the windows
        in the test set, which is done here.

    Args:
        root: A folder with shakespeare/data/{train,test}/*.json or shakespeare/data/all_data/*.json as LEAF writes
            them, or with the complete works as shakespeare/data/raw_data/raw_data.txt.
        cache: A folder for converted data sets; None converts at every start.
    """

    root: str
    cache: str | None

    def load(self) -> Loaded:
        """Reads the windows and whose they are."""
        files = obtain("shakespeare", Path(self.root).expanduser(), download=False)
        return cached(partial(_convert, files), folder=self.cache, name="shakespeare", files=files, settings={})


def _convert(files: Sequence[Path]) -> Loaded:
    if files[0].suffix == ".txt":
        train, test = divided(_windows(files[0]), in_order=True)
    else:
        train, test = read_leaf(files, _decode, in_order=True)
    return federation(train, test, n_classes=CATALOG["shakespeare"].classes)


def tokens(text: str) -> Tokens:
    """Returns the numbers of a text's characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _NUMBERS[np.minimum(codes, len(_NUMBERS) - 1)]


def _table() -> Tokens:
    table = np.full(128, UNKNOWN, np.int64)  # the last, which no text needs, also stands for all beyond
    table[[ord(c) for c in VOCABULARY]] = np.arange(UNKNOWN)
    return table


_NUMBERS = _table()


def _decode(x: list[Any], y: list[Any]) -> tuple[Tokens, Tokens]:
    return tokens("".join(x)).reshape(len(y), LENGTH), tokens("".join(y))


def _windows(path: Path) -> Users:
    """Every window of every role of the complete works."""
    texts = {role: " ".join(said.split()) for role, said in roles(path).items()}
    streams = {role: tokens(text) for role, text in texts.items() if len(text) > LENGTH + 1}
    if not streams:
        raise DataError(
            f"{path} ({path.stat().st_size:,} bytes) holds no role with more than {LENGTH} characters. Expected is the "
            f"plain text of the plays: {CATALOG['shakespeare'].how}."
        )
    windows = {role: sliding_window_view(stream, LENGTH + 1) for role, stream in streams.items()}
    return {role: (own[:, :-1], own[:, -1]) for role, own in windows.items()}
