"""Angles between the means of classes, and how far they are from the largest that all can have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedexp.core.ranges import CountOr0
from fedexp.probes.base import ClientView, Log, Probe, ServerView, Value
from fedexp.probes.vectors import class_means, etf_angle, mean_angle


@dataclass(frozen=True, kw_only=True)
class ClassMeansProbe(Probe):
    """The mean angle between class means of test features, in degrees. Fan et al., FedGELA, figures 3 and 5.

    Rows ``received`` and ``trained`` (the client's personal model) are over the classes that the client has, in
    ``angle``, and over those it does not have, in ``missing``; a row ``aggregated`` is over all classes in the server's
    model. ``centred``: with the mean of the class means taken off. ``etf`` is the angle of a simplex frame of as many
    vectors, arccos(−1 / (C − 1)): 96.38 of ten.

    Deviations: The paper says neither whose samples the means are of nor whether they are centred. Features are those
    of the network; a component's own layer behind them, as ``algo.etf.projection``, does not act.

    Args:
        samples: Of the global test set; 0 for all.
    """

    samples: CountOr0 = 1000

    def client(self, view: ClientView, log: Log) -> None:
        """The client's own classes, before and after."""
        for name, tree in (("received", view.received), ("trained", view.personal)):
            means, classes = class_means(*view.test(tree, self.samples))
            owned = view.info.owned[classes]
            log.row(name, {**_angles(means[owned]), "missing": mean_angle(means[~owned])})

    def server(self, view: ServerView, log: Log) -> None:
        """All classes in the server's model."""
        if view.after is not None:
            means, _ = class_means(*view.test(view.after, self.samples))
            log.row("aggregated", _angles(means))


def _angles(means: Tensor) -> dict[str, Value | None]:
    centred = means - means.mean(0)
    return {"angle": mean_angle(means), "centred": mean_angle(centred), "etf": etf_angle(len(means))}
