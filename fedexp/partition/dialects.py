"""Seven public readings of "each client owns k classes": who owns what, and how a class is cut over its owners.

Two results under the same words are comparable only within a dialect. Every dialect here shuffles a class before it is
cut, draws from the generator it is handed, and keeps the peculiarities named below, because numbers depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedexp.partition.table import IntArray, enough, equal

Assign = Callable[[int, int, int, np.random.Generator], IntArray]
"""From clients, classes and classes per client to the shares of each class each client gets, [clients, classes]."""

Cut = Callable[[IntArray, IntArray, np.random.Generator], IntArray]
"""From shares and the number of samples of each class to the table of counts."""


class Dialect(NamedTuple):
    """One reading, and what it promises.

    Attributes:
        assign: Who owns which classes.
        cut: How a class is divided over its owners.
        covers: Whether a class without an owner is refused; otherwise its samples belong to nobody.
        disjoint: Whether no sample has two owners.
        conserved: Whether every sample has an owner.
    """

    assign: Assign
    cut: Cut
    covers: bool = True
    disjoint: bool = True
    conserved: bool = True


# ---------------------------------------------------------------- who owns what
def in_order(n_clients: int, n_classes: int, per_client: int, rng: np.random.Generator) -> IntArray:
    """Deals the classes once in order; after that each client fills up with random classes it does not hold yet."""
    owns = np.zeros((n_clients, n_classes), dtype=np.int64)
    undealt = iter(range(n_classes))
    for own in owns:
        for _ in range(per_client):
            c = next(undealt, None)
            own[rng.choice(np.flatnonzero(own == 0)) if c is None else c] = 1
    return owns


def blocks(n_clients: int, n_classes: int, per_client: int, rng: np.random.Generator) -> IntArray:
    """Lays shuffled lists of all classes end to end and cuts blocks: one across a border may hold a class twice."""
    lists = -(-n_clients * per_client // n_classes)
    deck = np.concatenate([rng.permutation(n_classes) for _ in range(lists)])
    hands = deck[: n_clients * per_client].reshape(n_clients, per_client)
    return np.stack([np.bincount(hand, minlength=n_classes) for hand in hands])


def turn_first(n_clients: int, n_classes: int, per_client: int, rng: np.random.Generator) -> IntArray:
    """Gives client i class i mod C, the rest at random: every class has an owner from C clients on."""
    owns = np.zeros((n_clients, n_classes), dtype=np.int64)
    for client, own in enumerate(owns):
        first = client % n_classes
        others = np.delete(np.arange(n_classes), first)
        own[[first, *rng.choice(others, per_client - 1, replace=False)]] = 1
    return owns


def at_random(n_clients: int, n_classes: int, per_client: int, rng: np.random.Generator) -> IntArray:
    """Each client draws on its own: a class may stay without an owner."""
    deck = np.tile(np.arange(n_classes), (n_clients, 1))
    return (rng.permuted(deck, axis=1) < per_client).astype(np.int64)


def first_come(n_clients: int, n_classes: int, per_client: int, rng: np.random.Generator) -> IntArray:  # noqa: ARG001 - no chance here
    """Gives class after class to the first clients that still lack some, always as many: groups of equal clients."""
    owns = np.zeros((n_clients, n_classes), dtype=np.int64)
    owners = -(-n_clients * per_client // n_classes)
    for c in range(n_classes):
        owns[np.flatnonzero(owns.sum(axis=1) < per_client)[:owners], c] = 1
    return owns


# ---------------------------------------------------------------- how a class is cut
def all_equal(shares: IntArray, totals: IntArray, rng: np.random.Generator) -> IntArray:  # noqa: ARG001 - no chance here
    """Equal shares that differ by at most one sample; nothing is lost."""
    return equal(shares, totals)


def whole_shares(shares: IntArray, totals: IntArray, rng: np.random.Generator) -> IntArray:  # noqa: ARG001 - no chance here
    """Shares of exactly the same size; the remainder of the division is dropped."""
    return shares * (totals // np.maximum(enough(shares, totals), 1))


def rest_to_last(shares: IntArray, totals: IntArray, rng: np.random.Generator) -> IntArray:  # noqa: ARG001 - no chance here
    """Shares of the same size; the last owner takes the remainder, unless it is a whole share: then it is dropped."""
    size, rest = np.divmod(totals, np.maximum(enough(shares, totals), 1))
    table = shares * size
    last = shares.shape[0] - 1 - np.argmax(shares[::-1] > 0, axis=0)
    takes = shares.any(axis=0) & (rest < size)
    table[last[takes], takes] += rest[takes]
    return table


def random_sizes(shares: IntArray, totals: IntArray, rng: np.random.Generator) -> IntArray:
    """Each owner but the last takes a tenth to a whole of an equal share, at random; the last takes what is left."""
    pieces = enough(shares, totals)
    table = np.zeros_like(shares)
    for c in np.flatnonzero(pieces):
        owners = np.flatnonzero(shares[:, c])
        low = max(1, int(totals[c]) // (10 * owners.size))
        high = max(low + 1, int(totals[c]) // owners.size)
        table[owners[:-1], c] = rng.integers(low, high, size=owners.size - 1)
        table[owners[-1], c] = totals[c] - table[:, c].sum()
    return table


DIALECTS = {
    "fedgela": Dialect(in_order, all_equal),
    "fedmr": Dialect(in_order, all_equal, disjoint=False),
    "fedrs": Dialect(blocks, whole_shares, conserved=False),
    "niid": Dialect(turn_first, all_equal),
    "flower": Dialect(at_random, all_equal, covers=False, conserved=False),
    "flbench": Dialect(at_random, rest_to_last, covers=False, conserved=False),
    "pfllib": Dialect(first_come, random_sizes),
}
