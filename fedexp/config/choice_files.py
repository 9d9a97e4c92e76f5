"""What the file of a choice sets outside of its own group."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from fedexp.config.sources import conf_dir
from fedexp.system.files import reading

GLOBAL = "# @package _global_"


@cache
def set_besides(group: str, choice: str) -> Mapping[str, Any]:
    """The part of the file that is not the group's, ``{"public": 100}`` of algo=feddf; empty if it is not ours."""
    path = conf_dir() / group / f"{choice}.yaml"
    if path.parent != conf_dir() / group or not path.is_file():
        return {}
    with reading(path):
        text = path.read_text(encoding="utf-8")
    node = yaml.safe_load(text) if text.startswith(GLOBAL) else {}
    return {key: value for key, value in node.items() if key not in (group, "defaults")}
