"""Parts of the network that clients keep to themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedexp.core.component import Component
from fedexp.core.ranges import Text
from fedexp.core.state import Out, Slot, Tree, part_of_model, pick
from fedexp.core.views import Facts, LocalRound, View


@dataclass(frozen=True, kw_only=True)
class PrivatePart(Component):
    """Trains a part of the network with the rest, and never sends it: w_k = (mean over clients of the rest, own part).

    The methods differ in ``part``:

    - ``classifier``: FedPer, Arivazhagan et al., 2019 (arXiv:1912.00818), Alg. 1 and 2. With ``Alternate`` it is
      FedRep, Collins et al., ICML 2021, Alg. 1: first the classifier with the received features, then the features
      with that classifier.
    - ``features``: LG-FedAvg, Liang et al., 2020 (arXiv:2001.01523), Alg. 1.
    - ``norm``: FedBN, Li et al., ICLR 2021, Alg. 1.
    - ``all``: local training, without any communication.

    A client keeps its part, with running statistics, from the end of the phase in ``during`` for its next round; it
    begins with that of the initial model. Sent each way: the rest. The server's model lacks the part and is not tested.

    Deviations: LG-FedAvg's public code starts from a model that FedAvg has trained, this from the run's initial one;
    its paper tests an ensemble of clients on samples of unknown origin, which is not done. ``norm`` is every
    normalisation layer, not only batch norm; in a network without any, nothing is kept, and the model that clients
    train is FedAvg's. FedRep's running statistics of the features are averaged, as all of the features are.
    """

    part: Text = "classifier"

    personal: ClassVar[bool] = True

    @property
    def global_view(self) -> bool:
        """The server's model lacks the part."""
        return self.part == "none"

    def problems(self, facts: Facts) -> Iterable[str]:
        """The part is kept once."""
        if len(self.during) != 1 or "*" in self.during:
            yield f"during must name the one phase after which the part is kept, not {list(self.during)}"

    def note(self, facts: Facts) -> str | None:
        """What FedBN is without normalisation layers."""
        if self.part != "norm" or facts.layout.parts["norm"]:
            return None
        return (
            "this network has no normalisation layers, so nothing is private and clients train FedAvg's model; "
            "algo=fedavg also tests the server's"
        )

    def slots(self) -> Sequence[Slot]:
        """The client's own part."""
        return (Slot("part", "client", part_of_model(self.part)),)

    def private_part(self) -> str:
        """It never travels."""
        return self.part

    def start(self, weights: Tree, view: View) -> Tree:
        """The rest as received, the part as kept."""
        return {**weights, **view.mine["part"]}

    def finish(self, local: LocalRound) -> Out:
        """Keeps the trained part."""
        return Out(slots={"part": pick(local.ends[self.during[0]], local.layout.part(self.part))})

    def neutral(self) -> PrivatePart:
        """Where nothing is private, everything is averaged."""
        return replace(self, part="none")
