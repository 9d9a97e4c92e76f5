"""Types of settings that say what values make sense: ``alpha: Share``. A configuration is checked against them.

They stand in the signatures of components, networks, data sets and so on, from which ``fedexp.config.signatures``
reads them without importing anything, and among the run settings (``fedexp.config.settings``).
"""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

BILLION = 10**9
UNFIT = "/\\#?%:"  # for the name of a W&B project
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Range:
    """The values that are allowed among those of a type, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _folder(name: str) -> bool:
    return all(part and not part.startswith(".") and len(part.encode()) <= 200 for part in name.split("/"))


def _project(name: str) -> bool:
    return 0 < len(name) <= 128 and not set(name) & set(UNFIT)


def _printable(text: str) -> bool:
    return not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)


ALWAYS = {  # whatever else is asked of a value of these types
    float: Range("a finite number", math.isfinite),
    int: Range("a whole number of at most 64 bits", lambda v: abs(v) < 2**63),
    str: Range("a text without control characters", _printable),
}

# ---------------------------------------------------------------- numbers
Positive = Annotated[float, Range("greater than 0", lambda v: v > 0)]
NotNegative = Annotated[float, Range("0 or more", lambda v: v >= 0)]
Share = Annotated[float, Range("between 0 and 1", lambda v: 0 <= v <= 1)]
ShareAbove0 = Annotated[float, Range("in (0, 1]", lambda v: 0 < v <= 1)]
ShareBelow1 = Annotated[float, Range("in [0, 1)", lambda v: 0 <= v < 1)]
ShareInside = Annotated[float, Range("in (0, 1)", lambda v: 0 < v < 1)]
Epochs = Annotated[float, Range("greater than 0, at most 1,000,000", lambda v: 0 < v <= 10**6)]
Seconds = Annotated[float, Range("greater than 0, at most 1,000,000,000", lambda v: 0 < v <= BILLION)]

Count = Annotated[int, Range("between 1 and 1,000,000,000", lambda v: 1 <= v <= BILLION)]
CountOr0 = Annotated[int, Range("between 0 and 1,000,000,000", lambda v: 0 <= v <= BILLION)]
Depth = Annotated[int, Range("between 1 and 1,000", lambda v: 1 <= v <= 1000)]
Pixels = Annotated[int, Range("between 1 and 1,024 pixels", lambda v: 1 <= v <= 1024)]
Threads = Annotated[int, Range(f"between 1 and {CORES}, the cores of this machine", lambda v: 1 <= v <= CORES)]
Workers = Annotated[int, Range(f"between 1 and {16 * CORES} (16 for each core)", lambda v: 1 <= v <= 16 * CORES)]
PerDevice = Annotated[int, Range("between 1 and 64", lambda v: 1 <= v <= 64)]

# ---------------------------------------------------------------- texts
Text = Annotated[str, Range("a text that is not empty", lambda v: bool(v.strip()))]
FolderName = Annotated[
    str, Range("the name of a folder, or a/b, of which no part is empty or begins with a dot", _folder)
]
Project = Annotated[str, Range(f"1 to 128 letters, none of them {' '.join(UNFIT)}", _project)]
Tag = Annotated[str, Range("1 to 64 letters", lambda v: 0 < len(v) <= 64)]
