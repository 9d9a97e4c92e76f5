from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedexp.core.ranges import Count
from fedexp.errors import PartitionError
from fedexp.partition.base import Partition
from fedexp.partition.table import IntArray, equal


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Each class is cut into equal shards; each client gets the same number of them.

    McMahan et al., AISTATS 2017, section 3; Li and Zhan, FedRS, KDD 2021, appendix A, table 2 (5 or 2 shards per
    client on CIFAR-10, 20 on CIFAR-100). With ``deal="blocks"`` the shuffled list of all classes is dealt round after
    round in blocks, so a client's shards are all of different classes, as table 2 counts them. Nothing is dropped.

    If ``per_client`` does not divide the number of classes, a client takes the rest of one list and the beginning of
    the next, in which the classes it already holds are moved to the back: its classes stay different. If the shards
    do not divide evenly over the classes, some classes are cut into one shard more than others, and shards of
    different classes differ in size.

    Deviations: The text of FedRS describes shards dealt at random, which yields 4.11, 1.91 and 18.29 different
        classes on average rather than 5, 2 and 20; ``deal="random"`` does that.

    Args:
        per_client: The number of shards of each client.
        deal: How they are dealt.
    """

    per_client: Count
    deal: Literal["blocks", "random"] = "blocks"

    def table(self, totals: IntArray, n_clients: int, rng: np.random.Generator) -> IntArray:
        """Deals shards and cuts each class into as many as were dealt."""
        n_classes = totals.size
        if self.deal not in DEALS:
            raise PartitionError(f"partition.deal={self.deal!r} is none of {', '.join(DEALS)}.")
        if not 1 <= self.per_client <= n_classes:
            raise PartitionError(
                f"partition.per_client={self.per_client} has to lie between 1 and {n_classes} classes."
            )
        if self.per_client * n_clients < n_classes:
            raise PartitionError(
                f"{n_clients} clients with {self.per_client} shards hold {self.per_client * n_clients} shards, too few "
                f"for {n_classes} classes. Use more clients (cohort.clients) or raise partition.per_client."
            )
        hands = DEALS[self.deal](n_clients, self.per_client, n_classes, rng)
        shares = np.stack([np.bincount(hand, minlength=n_classes) for hand in hands])
        return equal(shares, totals)


def _blocks(n_clients: int, per_client: int, n_classes: int, rng: np.random.Generator) -> IntArray:
    hands = np.empty((n_clients, per_client), dtype=np.int64)
    deck = np.empty(0, dtype=np.int64)
    for client in range(n_clients):
        if deck.size < per_client:
            fresh = rng.permutation(n_classes)
            held = np.isin(fresh, deck)
            deck = np.concatenate([deck, fresh[~held], fresh[held]])
        hands[client], deck = deck[:per_client], deck[per_client:]
    return hands


def _random(n_clients: int, per_client: int, n_classes: int, rng: np.random.Generator) -> IntArray:
    rounds, rest = divmod(n_clients * per_client, n_classes)
    deck = np.concatenate([np.tile(np.arange(n_classes), rounds), rng.choice(n_classes, rest, replace=False)])
    return rng.permutation(deck).reshape(n_clients, per_client)


DEALS = {"blocks": _blocks, "random": _random}
