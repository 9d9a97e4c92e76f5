"""FedBABU: features are learned under a classifier that stays as it began, which is tuned only for a test."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedexp.core.component import Component, Phase
from fedexp.core.ranges import Epochs, Positive, Text


@dataclass(frozen=True, kw_only=True)
class FixedClassifier(Component):
    """Leaves the classifier at its initial values in all phases of a round, and out of all messages.

    Oh, Kim and Yun, FedBABU, ICLR 2022, Alg. 1: every client trains the body under the same random head; the server
    averages bodies. Sent each way: all but the classifier. Nothing is personal, and the server's model, with that
    classifier, is complete.

    The classifier is not in the optimizer: neither momentum nor weight decay moves it.

    Deviations: none from Alg. 1. FL-bench sets the classifier's gradient to zero instead, so that weight decay would
    still move it.
    """

    def private_part(self) -> str:
        """It is the same everywhere, so it need not travel."""
        return "classifier"

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """What would train everything trains the rest."""
        return [replace(p, train="body") if p.train == "all" and not p.test else p for p in phases]


@dataclass(frozen=True, kw_only=True)
class FineTune(Component):
    """Trains a part of a client's model on its own samples before the model is tested, and forgets the result.

    Oh, Kim and Yun, FedBABU, ICLR 2022: the head is fine-tuned for personalization during evaluation. The score
    without it is recorded as ``unadapted``. Nothing is sent or kept, and the rounds are as without it, bit for bit.

    Deviations: the paper tunes the server's model. So does ``evaluate=fedrema``; ``evaluate=map`` tests after local
    training, so tuning starts from the features that the client has just trained. ``part: all`` tunes the whole
    network, as PFLlib does, for 10 epochs.
    """

    part: Text = "classifier"
    epochs: Epochs = 5.0
    lr: Positive | None = None
    during: tuple[str, ...] = ("tune",)

    def plan(self, phases: list[Phase]) -> list[Phase]:
        """One more phase, for the test only."""
        optim = {} if self.lr is None else {"lr": self.lr}
        return [
            *phases,
            Phase("tune", start="previous", train=self.part, epochs=self.epochs, optim=optim, test=True),
        ]

    def neutral(self) -> FineTune:
        """Tests leave no trace in the server's model."""
        return self
