"""Trees: their arithmetic, their bytes, their digest."""

from __future__ import annotations

import pytest
import torch

from fedexp.core import state
from fedexp.core.state import Init, Layout, add, axpy, digest, global_norm, lerp, nbytes, pick, scale, snapshot, sub


def tree(**values: object) -> dict[str, torch.Tensor]:
    return {k: torch.as_tensor(v) for k, v in values.items()}


A = tree(w=[[1.0, -2.0], [0.5, 4.0]], b=[3.0])
B = tree(w=[[2.0, 2.0], [-1.0, 0.0]], b=[-1.0])


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(
        one[k].dtype == other[k].dtype and torch.equal(one[k], other[k]) for k in one
    )


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (add(A, B), tree(w=[[3.0, 0.0], [-0.5, 4.0]], b=[2.0])),
        (sub(A, B), tree(w=[[-1.0, -4.0], [1.5, 4.0]], b=[4.0])),
        (scale(A, -2), tree(w=[[-2.0, 4.0], [-1.0, -8.0]], b=[-6.0])),
        (axpy(0.5, A, B), tree(w=[[2.5, 1.0], [-0.75, 2.0]], b=[0.5])),
        (lerp(A, B, 0.25), tree(w=[[1.25, -1.0], [0.125, 3.0]], b=[2.0])),
        (state.zeros_like(A), tree(w=[[0.0, 0.0], [0.0, 0.0]], b=[0.0])),
        (pick(A, ["b"]), tree(b=[3.0])),
    ],
)
def test_arithmetic(got, expected):
    assert equal(got, expected)


def test_names_are_those_of_the_first_argument():
    more = {**B, "extra": torch.ones(1)}
    for result in (add(A, more), sub(A, more), axpy(2.0, A, more), lerp(A, more, 0.5)):
        assert list(result) == ["w", "b"]
    with pytest.raises(KeyError, match="extra"):
        sub(more, A)


def test_norms():
    assert state.squared_distance(A, B).item() == 1 + 16 + 2.25 + 16 + 16
    assert global_norm(tree(a=[3.0], b=[[4.0]])).item() == 5


def test_lerp_at_zero_is_the_first_tree_itself_even_beside_infinities():
    broken = tree(w=[[float("nan")] * 2] * 2, b=[float("inf")])
    assert equal(lerp(A, broken, 0.0), A)
    assert equal(lerp(A, B, 1.0), B)


def test_lerp_leaves_counters_alone():
    one, two = tree(w=[1.0], n=5), tree(w=[3.0], n=100)
    assert equal(lerp(one, two, 0.5), tree(w=[2.0], n=5))


def test_nothing_is_changed_in_place():
    before = digest({"a": A, "b": B})
    for function in (add, sub):
        function(A, B)
    scale(A, 3.0), axpy(2.0, A, B), lerp(A, B, 0.3), state.zeros_like(A)
    assert digest({"a": A, "b": B}) == before


def test_a_snapshot_does_not_follow_training():
    live = torch.nn.Parameter(torch.ones(3))
    kept = snapshot({"w": live})
    with torch.no_grad():
        live.mul_(2)
    assert kept["w"].tolist() == [1, 1, 1]
    assert not kept["w"].requires_grad


def test_nbytes_counts_each_type_by_its_size():
    mixed = {"f": torch.zeros(3, 5), "d": torch.zeros(2, dtype=torch.float64), "n": torch.tensor(7)}
    assert nbytes(mixed) == 3 * 5 * 4 + 2 * 8 + 8
    assert nbytes({}) == 0


# ---------------------------------------------------------------- digest
BASE = {"model": tree(w=[1.0, 2.0], b=[3.0]), "slot": tree(v=[4.0])}


def test_digest_does_not_depend_on_insertion_order():
    shuffled = {"slot": BASE["slot"], "model": {"b": BASE["model"]["b"], "w": BASE["model"]["w"]}}
    assert list(shuffled) != list(BASE)
    assert digest(shuffled) == digest(BASE)


def test_digest_does_not_depend_on_memory_layout():
    value = torch.arange(6.0).view(2, 3)
    assert digest({"m": {"w": value.T.contiguous()}}) == digest({"m": {"w": value.T}})


@pytest.mark.parametrize(
    "other",
    [
        {"other": BASE["model"], "slot": BASE["slot"]},
        {"model": tree(x=[1.0, 2.0], b=[3.0]), "slot": BASE["slot"]},
        {"model": tree(w=[1.0, 2.0], b=[3.0])},
        {"model": tree(w=[[1.0, 2.0]], b=[3.0]), "slot": BASE["slot"]},
        {"model": tree(w=[1.0, 2.0000002], b=[3.0]), "slot": BASE["slot"]},
        {"model": tree(w=[2.0, 1.0], b=[3.0]), "slot": BASE["slot"]},
        {"model": {**BASE["model"], "w": torch.tensor([1.0, 2.0], dtype=torch.float64)}, "slot": BASE["slot"]},
        {"model": tree(w=[1.0, 2.0]), "slot": tree(v=[4.0], b=[3.0])},
    ],
    ids=["slot name", "tensor name", "slot gone", "shape", "last bit", "order of values", "type", "moved"],
)
def test_digest_sees_every_difference(other):
    assert digest(other) != digest(BASE)


def test_digest_is_frozen():
    """Digests on file must stay comparable with those of later versions."""
    assert digest(BASE) == "070b2653259a6195fb616c9b6d8e76508b0a1df632a351e4bea4da29d9cac9d2"


# ---------------------------------------------------------------- declarations
LAYOUT = Layout(
    parameters=("f.w", "c.w"),
    buffers=("f.n",),
    parts={"all": frozenset({"f.w", "c.w", "f.n"}), "features": frozenset({"f.w", "f.n"})},
    shared=("f.w",),
)


def test_layout_names_parts_and_what_can_be_trained():
    assert LAYOUT.part("features") == ("f.w", "f.n")
    assert LAYOUT.part("all") == ("f.w", "c.w", "f.n")
    assert LAYOUT.trainable("features") == {"f.w"}


def test_initial_values():
    model = {"f.w": torch.ones(2), "c.w": torch.full((3,), 2.0), "f.n": torch.tensor(4)}
    w0 = {k: v * 0 for k, v in model.items()}
    init = Init(model, w0, LAYOUT, 10, 2, 5, torch.zeros(5, 10), torch.Generator())
    assert equal(state.zeros_shared(init), {"f.w": torch.zeros(2)})
    assert equal(state.received(init), model)
    assert equal(state.initial(init), w0)
    assert equal(state.part_of_model("features")(init), {"f.w": torch.ones(2), "f.n": torch.tensor(4)})
    assert equal(state.number(3.5)(init), {"value": torch.tensor(3.5)})
    assert state.per_class(2, value=1.0)(init)["value"].tolist() == [[1.0, 1.0]] * 10
