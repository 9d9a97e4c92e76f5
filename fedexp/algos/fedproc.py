"""Contrast with class prototypes, which gives way to the classifier over the rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.component import Component
from fedexp.core.ranges import Count, Positive
from fedexp.core.views import Step

UNKNOWN = -100  # the label of samples whose class has no prototype


@dataclass(frozen=True, kw_only=True)
class PrototypeContrast(Component):
    """Trains on a · CE + (1 - a) · L, where L classifies features by the prototypes, and a = t/T in round t = 0, 1, ….

    Mu et al., FedProc, Future Generation Computer Systems 2023: L = -log(exp(s_y/τ) / Σ_c exp(s_c/τ)) with s_c the
    similarity of the feature to the global prototype of class c, a constant. ``ClassMeans`` makes the prototypes; they
    are sent each way with the model. No client has a model of its own. ``rounds`` is T, the run's if null. In the first
    round there are no prototypes, and a sample whose class has none has its cross-entropy alone.

    ``similarity: cosine`` divides features and prototypes by their lengths; ``dot`` divides prototypes only, which with
    ``temperature: 1`` is the authors' public code.

    Deviations: the authors put a projection head between features and classifier and take prototypes of its outputs;
    here they are of the features, the same network for all methods, as FedMR counts it (table 3: C · 512 numbers more
    than FedAvg). FedMR's temperature is not printed. The public code has T = 100 whatever the run's rounds.
    """

    temperature: Positive = 0.5
    similarity: Literal["cosine", "dot"] = "cosine"
    rounds: Count | None = None

    needs: ClassVar[tuple[str, ...]] = ("means",)

    @property
    def total_rounds(self) -> str | None:
        """The weights of both losses change over the run, unless ``rounds`` is given."""
        return None if self.rounds else "the weight of the contrast falls over the whole run"

    def loss(self, step: Step) -> Tensor | None:
        """The contrast, written as a correction of the cross-entropy: (1 - a) · (L - CE)."""
        means = step.of("means")["means"]
        share = step.once("share", lambda: self._share(step) if bool(means["known"].any()) else 0.0)
        if not share:
            return None
        known = means["known"] > 0
        prototypes = step.once("prototypes", lambda: F.normalize(means["value"]))
        features = F.normalize(step.h) if self.similarity == "cosine" else step.h
        similarities = (features @ prototypes.T / self.temperature).masked_fill(~known, -torch.inf)
        y = step.y.masked_fill(~known[step.y], UNKNOWN)
        contrast, ce = (F.cross_entropy(z, y, reduction="sum", ignore_index=UNKNOWN) for z in (similarities, step.z))
        return share * (contrast - ce) / len(y)

    def neutral(self) -> PrototypeContrast:
        """After one round without prototypes the cross-entropy has all the weight."""
        return replace(self, rounds=1)

    def _share(self, step: Step) -> float:
        """1 - a: how much of the loss is the contrast in this round."""
        return max(1 - step.round / (self.rounds or step.facts.rounds), 0.0)
