"""How a metric of a table is taken from a run, or worked out from other cells. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Cell = tuple[str, str, str]  # setting, method, metric
Cells = Mapping[Cell, float]
REFERENCE = "FedAvg"
ROUNDS_TO_REFERENCE = "rounds to FedAvg's best"  # rules, see ``Measure``
NEEDS_ALL = "lead over the best other method"


@dataclass(frozen=True)
class Measure:
    """How a metric of an entry is taken from a run.

    ``of`` is ``group.key`` of a round's record, split at the first dot: ``numbers.heads.rounds`` is the key
    ``heads.rounds`` of ``numbers``. ``probes.classifier.trained.norms`` is a number of a probe, as the mean over all
    rows of the round with that probe and name in probes.jsonl. There are five kinds of ``rule``:

    - a selection rule of ``fedexp.reproduce.selection``: chooses from the series of ``of`` over the rounds;
    - ``result``: ``of`` is a key of result.json;
    - a name in ``COMPUTED``: worked out from other cells, ``of`` is their metric; ``computed_from`` does it;
    - ``rounds to FedAvg's best``: the first round in which the series ``of`` is at least the best of FedAvg's in the
      same scene and seed; of FedAvg itself, by the paper's definition, all rounds;
    - ``count``: no training run gives it; see ``fedexp.reproduce.counts``.
    """

    metric: str  # aggregation, PA …, as in ``Number.metric``
    of: str  # key of a round's record (aggregation.accuracy), or of result.json if the rule is ``result``
    rule: str  # name of a selection rule, see ``fedexp.reproduce.selection``
    percent: bool = True  # printed times 100

    @property
    def computed(self) -> bool:
        """Whether it is worked out from other cells."""
        return self.rule in COMPUTED

    def computed_from(self, cells: Cells, setting: str, method: str) -> float | None:
        """The value that other cells give; None if one of them is missing."""
        try:
            return COMPUTED[self.rule](cells, setting, method, self.of)
        except (KeyError, ValueError, ZeroDivisionError):  # a cell that is not there; no other method; no rounds
            return None


# Metrics that are worked out from other cells of the same entry: setting, method, and the metric of those cells.
COMPUTED: dict[str, Callable[[Cells, str, str, str], float]] = {
    "lead over FedAvg": lambda cells, s, m, of: cells[s, m, of] - cells[s, "FedAvg", of],
    "lead over the best other method": lambda cells, s, m, of: cells[s, m, of] - max(_others(cells, s, m, of)),
    "FedGELA's lead over it": lambda cells, s, m, of: cells[s, "FedGELA", of] - cells[s, m, of],
    "FedAvg's divided by it": lambda cells, s, m, of: cells[s, "FedAvg", of] / cells[s, m, of],
}


def _others(cells: Cells, setting: str, method_name: str, metric: str) -> Iterator[float]:
    return (v for (s, m, k), v in cells.items() if (s, k) == (setting, metric) and m != method_name)
