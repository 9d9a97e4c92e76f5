"""LEAF's json files: everybody's samples under their name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedexp.data.by_user import Users, divided
from fedexp.errors import DataError

Decode = Callable[[list[Any], list[Any]], tuple[NDArray[Any], NDArray[np.int64]]]
"""Makes arrays of one user's lists ``x`` and ``y``."""


def read_leaf(files: Sequence[Path], decode: Decode, *, in_order: bool) -> tuple[Users, Users]:
    """Reads LEAF's split, or divides its samples itself if they are not split yet.

    Caldas et al., LEAF, arXiv 1812.01097. Every file is an object with ``users`` and ``user_data``, which maps a user
    to ``x`` and ``y``.

    Args:
        files: Those of the folders ``train`` and ``test``, or those of ``all_data``.
        decode: Makes arrays of a user's lists.
        in_order: How to divide; see ``divided``.
    """
    parts = {part: _users([f for f in files if f.parent.name == part], decode) for part in ("train", "test")}
    if parts["train"]:
        return parts["train"], parts["test"]
    return divided(_users(files, decode), in_order=in_order)


def _users(files: Sequence[Path], decode: Decode) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
    users = {}
    for path in files:
        try:
            stored = json.loads(path.read_text())["user_data"]
            own = {str(user): decode(data["x"], data["y"]) for user, data in stored.items() if data["y"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} ({path.stat().st_size:,} bytes) is not one of LEAF's files, an object with user_data = "
                f"{{user: {{x: [...], y: [...]}}}}: {type(error).__name__}: {error}. Make it again with LEAF's "
                "preprocess.sh, or name another folder (data.root)."
            ) from error
        users.update(own)
    return users
