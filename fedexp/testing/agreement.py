"""Whether two runs are the same: bit for bit, or to rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedexp.core.record import Record
from fedexp.core.state import ServerState, Tree, digest
from fedexp.engine import Engine
from fedexp.testing.trial import CLIENTS

ROUNDING = 1e-10  # by how much numbers of double precision may differ, as a share of the largest in their tensor


def demand_equal(one: Engine, two: Engine, what: str) -> None:
    """Raises AssertionError unless server, clients and records of two runs are equal, bit for bit."""
    for kind, value in one.digests().items():
        demand(two.digests()[kind] == value, f"{what} gives another {kind}")
    slots = [state_digest(e.progress.state) for e in (one, two)]
    demand(slots[0] == slots[1], f"{what} gives other server slots")
    demand(len(one.records) == len(two.records), f"{what} gives another number of records")
    for ours, theirs in zip(_measured(one), _measured(two), strict=True):
        different = [k for k in {**ours, **theirs} if ours.get(k) != theirs.get(k)]
        demand(not different, f"{what} gives another {different} in the record of round {ours['round']}")


@contextmanager
def double_precision() -> Iterator[None]:
    """What is made in the block has double precision: data, networks, slots."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def demand_close(one: Engine, two: Engine, what: str) -> None:
    """Raises AssertionError unless those of two runs in double precision are equal to rounding."""
    for kind, ours in _trees(one).items():
        theirs = _trees(two).get(kind, {})
        demand(ours.keys() == theirs.keys(), f"{what} gives other tensors of {kind}")
        for name, value in ours.items():
            limit = ROUNDING * max(1.0, value.abs().max().item())
            apart = (value - theirs[name]).abs().max().item()
            demand(apart <= limit, f"{what} gives another {kind}: {name} is {apart:.1e} off")
    for ours, theirs in zip(_measured(one), _measured(two), strict=True):
        different = [k for k in {**ours, **theirs} if not _nearly(ours.get(k), theirs.get(k))]
        demand(not different, f"{what} gives another {different} in the record of round {ours['round']}")


def _trees(engine: Engine) -> dict[str, Tree]:
    """All that the server and the clients remember."""
    state, store = engine.progress.state, engine.progress.store
    mail = {f"{name} of client {c}": tree for name, box in state.mailboxes.items() for c, tree in box.items()}
    kept = {f"{name} of client {c}": tree for c in range(CLIENTS) for name, tree in store.get(c).items()}
    return {"model": state.model, **state.slots, **mail, **kept}


def _nearly(one: object, two: object) -> bool:
    """Whether two records say the same but for rounding."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_nearly(one[k], two[k]) for k in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_nearly, one, two))
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= ROUNDING * max(1.0, abs(one))
    return one == two


def state_digest(state: ServerState) -> str:
    """The digest of all that the server has."""
    mail = {f"{name}/{client}": tree for name, box in state.mailboxes.items() for client, tree in box.items()}
    return digest({"model": state.model, **state.slots, **mail})


def _measured(engine: Engine) -> list[Record]:
    """The records as they are on file, without what depends on the clock."""
    records: list[Record] = json.loads(json.dumps(engine.records))
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def demand(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    """Raises AssertionError, saying what is wrong, unless something holds."""
    if not holds:
        raise AssertionError(otherwise)
