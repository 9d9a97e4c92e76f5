"""What a result says of the bytes of its run's files, and of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedexp.errors import DamagedError
from fedexp.runs.names import ARRAYS, CONFIG, GROWING, MODEL, OF_ARRAYS, PLAN, PROBES, RESULT
from fedexp.system.files import Mark

# Files that are not written again once the result has their checksums.
LASTING = (*(name for name in GROWING if name != PROBES), MODEL)
CHECKED = (CONFIG, PLAN, *LASTING)


def checksums(path: Path, result: Mapping[str, Any]) -> dict[str, Mark]:
    """What a result says of the run's files, and of itself."""
    try:
        marks = {name: Mark(mark["size"], mark["crc32"]) for name, mark in result["checksums"].items()}
    except (KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is not a result that a run has written: it has no checksums.") from None
    seen = {name for name in marks if name == PROBES or _is_array(name)}
    if not {*LASTING, RESULT} <= marks.keys() - seen <= {*CHECKED, RESULT}:
        raise DamagedError(f"{path} is not a result that a run has written: it has checksums of other files.")
    return marks


def _is_array(name: str) -> bool:
    folder, _, file = name.partition("/")
    return folder == ARRAYS and OF_ARRAYS.fullmatch(file) is not None


def content_mark(result: Mapping[str, Any]) -> Mark:
    """The mark of all that a result says, but of itself."""
    others = {name: mark for name, mark in result["checksums"].items() if name != RESULT}
    return Mark().after(json.dumps({**result, "checksums": others}).encode())


def compare(path: Path, found: Mark, written: Mark | None) -> None:
    """Raises ``DamagedError`` if a file is not what was written."""
    if found != written:
        raise DamagedError(f"{path} is damaged: it is not what was written when the run had finished.")
