"""Training the two parts of a network one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedexp.core.component import Component, Phase
from fedexp.core.ranges import Epochs, Positive


@dataclass(frozen=True, kw_only=True)
class Alternate(Component):
    """Trains the classifier with frozen features in a phase ``head``, then the features with that classifier.

    Liang et al., FedReMa, ECAI 2024, table 4 (+A), after FedPAC. What acts ``during: [local]`` acts while the features
    are trained. Each phase has its own batches and its own optimizer. ``epochs`` are the classifier's, ``body_epochs``
    those of the features; null is the run's ``local.epochs`` (FedRep: 10 and 1).

    Deviations: one epoch for the classifier and the run's epochs for the features, as in FedPAC; FedReMa's public code
    trains both for the run's epochs (``epochs: null``), twice the budget of its other rows. ``lr: null`` is the run's
    learning rate, as there; FedPAC's own code has 0.1 for the classifier.
    """

    epochs: Epochs | None = 1.0
    lr: Positive | None = None
    body_epochs: Epochs | None = None

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """Puts a phase before the one that is uploaded."""
        optim = {} if self.lr is None else {"lr": self.lr}
        edited: list[Phase] = []
        for phase in phases:
            if phase.uploads:
                edited.append(Phase("head", start=phase.start, train="classifier", epochs=self.epochs, optim=optim))
                epochs = phase.epochs if self.body_epochs is None else self.body_epochs
                phase = replace(phase, start="previous", train="body", epochs=epochs)  # noqa: PLW2901
            edited.append(phase)
        return edited
