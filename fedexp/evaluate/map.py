"""MAP's evaluation protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedexp.evaluate.protocol import EvaluationProtocol


@dataclass(frozen=True, kw_only=True)
class MapProtocol(EvaluationProtocol):
    """MAP, definitions 1 and 2: personal models right after local training, of the clients of the round."""

    name: ClassVar[str] = "map"
