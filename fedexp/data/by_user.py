"""Whose sample is whose, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedexp.data.source import DataSpec, Loaded, Samples

Users = Mapping[str, tuple[NDArray[Any], NDArray[np.int64]]]
"""Everybody's samples and labels."""

TRAIN_SHARE = 0.8
SPLIT_SEED = 0  # a constant, not the run's seed: the test set belongs to the data


def numbered(train: NDArray[np.int64], test: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Numbers the makers of samples from 0 on, those of the training samples first, each group in ascending order."""
    known = np.unique(train)
    everybody = np.concatenate([known, np.setdiff1d(test, known)])
    order = np.argsort(everybody)
    owners, test_owners = (order[np.searchsorted(everybody, part, sorter=order)] for part in (train, test))
    return torch.from_numpy(owners), torch.from_numpy(test_owners)


def federation(train: Users, test: Users, *, n_classes: int) -> Loaded:
    """Joins everybody's samples, in the order of names, and keeps who made which."""
    known = sorted(train)
    number = {user: i for i, user in enumerate([*known, *sorted(set(test) - set(known))])}
    owners, test_owners = (
        torch.from_numpy(np.repeat([number[u] for u in sorted(part)], [len(part[u][1]) for u in sorted(part)]))
        for part in (train, test)
    )
    samples = [_joined(part) for part in (train, test)]
    spec = DataSpec(tuple(samples[0].x.shape[1:]), n_classes)
    return Loaded(spec, samples[0], samples[1], None, owners, test_owners)


def _joined(users: Users) -> Samples:
    x, y = (np.concatenate([users[user][i] for user in sorted(users)]) for i in (0, 1))
    return Samples(torch.from_numpy(x), torch.from_numpy(y))


def divided(users: Users, *, in_order: bool) -> tuple[Users, Users]:
    """Gives 80 % of everybody's samples to training and the rest to testing, as FedRS does with LEAF's data.

    Whoever has a single sample is left out.

    Args:
        users: Everybody's samples.
        in_order: Whether the first 80 % are for training, or random ones.
    """
    rng = np.random.default_rng(SPLIT_SEED)
    train: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    test: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
    for user in sorted(users):
        x, y = users[user]
        if len(y) < 2:
            continue
        cut = max(1, int(TRAIN_SHARE * len(y)))
        if in_order:  # without copying anything
            train[user], test[user] = (x[:cut], y[:cut]), (x[cut:], y[cut:])
            continue
        order = rng.permutation(len(y))
        for part, rows in ((train, np.sort(order[:cut])), (test, np.sort(order[cut:]))):
            part[user] = x[rows], y[rows]
    return train, test
