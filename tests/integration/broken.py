"""A component with a bug."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedexp.core.component import Component


@dataclass(frozen=True, kw_only=True)
class Broken(Component):
    def slots(self) -> Any:
        return 1 / 0
