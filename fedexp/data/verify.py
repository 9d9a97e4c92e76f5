"""Whether files are the published ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fedexp.data.formats import content, read_cifar
from fedexp.errors import DataError

CHECKSUMS: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(
    Path(__file__).with_name("checksums.json").read_text()
)
"""By data set and file, without .gz; any one of a file's will do. ``sha256:`` is of the unpacked file, ``pixels:`` the
sha256 of a CIFAR batch's pixels and labels, whatever else the file holds."""


def verify(name: str, files: Sequence[Path]) -> None:
    """Compares the files of a data set with their checksums, where there are any; raises ``DataError``."""
    known = CHECKSUMS.get(name, {})
    for path in files:
        expected = known.get(path.name.removesuffix(".gz"))
        if expected and not any(actual in expected for actual in _digests(path, expected)):
            raise DataError(
                f"{path} ({path.stat().st_size:,} bytes) is not the published file: expected {' or '.join(expected)}, "
                f"found {', '.join(_digests(path, expected[:1]))}. {remedy(name)}"
            )


def remedy(name: str) -> str:
    """What to do about a file that is wrong."""
    return (
        f"Delete it and get it again (python -m fedexp.data fetch {name}), name another folder (data.root), "
        "or use data.verify=false if it differs on purpose."
    )


def _digests(path: Path, expected: Sequence[str]) -> Iterator[str]:
    for kind in (e.partition(":")[0] for e in expected):
        if kind == "pixels":
            with suppress(DataError):  # then it is not the published file, which is all that is asked here
                pixels, labels = read_cifar(path)
                yield f"pixels:{hashlib.sha256(pixels.tobytes() + bytes(labels.tolist())).hexdigest()}"
        else:
            yield f"{kind}:{hashlib.new(kind, content(path)).hexdigest()}"
