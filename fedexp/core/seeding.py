"""Randomness as a function of its address: no generator state is ever kept or saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch


def derive(seed: int, *path: int | str) -> int:
    """Returns a 63-bit seed for one purpose, e.g. ``derive(seed, "batches", round, client, phase)``.

    Different paths give independent streams; adding a client or a round changes no other stream.
    """
    address = "/".join([f"{type(step).__name__}:{step}" for step in (seed, *path)])
    return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "little") >> 1


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for the given address."""
    return np.random.default_rng(derive(seed, *path))


def torch_rng(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for the given address."""
    return torch.Generator(device=device).manual_seed(derive(seed, *path))


def _uses_cuda() -> bool:
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return used


@cache
def _accelerated() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def seeded(seed: int, *path: int | str) -> Iterator[None]:
    """Seeds torch's global generators inside the block (network initialisation, dropout); restores them after it."""
    if _accelerated():
        used = [torch.cuda.current_device()] if _uses_cuda() else []  # the others are not this process's
        with torch.random.fork_rng(used):
            torch.random.manual_seed(derive(seed, *path))
            yield
        return
    before = torch.default_generator.get_state()  # the rest of fork_rng takes longer than a tiny client's step
    torch.default_generator.manual_seed(derive(seed, *path))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
