"""Laws of trees."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedexp.core.state import (
    Layout,
    add,
    axpy,
    digest,
    lerp,
    nbytes,
    pick,
    scale,
    snapshot,
    squared_distance,
    sub,
    zeros_like,
)
from tests.laws.strategies import NAMES, pairs, share, small, trees

ALMOST = {"rtol": 1e-9, "atol": 1e-9}


def close(one, other) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], **ALMOST)


def equal(one, other) -> bool:
    """Equal values, where minus zero is zero."""
    return list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in one)


def same(one, other) -> bool:
    return digest({"": one}) == digest({"": other})


@given(pairs(), share)
def test_lerp_ends_at_both_trees_and_stays_between(pair, weight):
    a, b = pair
    assert same(lerp(a, b, 0.0), a)
    assert equal(lerp(a, b, 1.0), b)
    mixed = lerp(a, b, weight)
    for name, value in mixed.items():
        low, high = torch.minimum(a[name], b[name]), torch.maximum(a[name], b[name])
        assert ((value >= low - 1e-9) & (value <= high + 1e-9)).all()
    close(lerp(a, a, weight), a)
    close(mixed, lerp(b, a, 1 - weight))


@given(pairs(), small, small)
def test_axpy_is_linear(pair, s, t):
    x, y = pair
    close(axpy(s + t, x, y), axpy(s, x, axpy(t, x, y)))
    close(axpy(s, add(x, y), zeros_like(y)), add(scale(x, s), scale(y, s)))
    assert equal(axpy(0.0, x, y), y)
    close(axpy(-1.0, y, x), sub(x, y))


@given(pairs())
def test_adding_and_taking_away(pair):
    a, b = pair
    close(sub(add(a, b), b), a)
    assert same(add(a, b), add(b, a))
    assert squared_distance(a, a) == 0
    torch.testing.assert_close(squared_distance(a, b), squared_distance(b, a))


@given(trees(), st.sets(st.sampled_from(NAMES)))
def test_what_is_picked_and_what_is_not_make_the_whole(tree, names):
    chosen = [n for n in tree if n in names]
    rest = [n for n in tree if n not in names]
    one, other = pick(tree, chosen), pick(tree, rest)
    assert same({**one, **other}, tree)
    assert nbytes(one) + nbytes(other) == nbytes(tree)
    assert not set(one) & set(other)


@given(trees(), st.randoms(use_true_random=False))
def test_a_digest_knows_values_and_not_order(tree, random):
    names = list(tree)
    random.shuffle(names)
    assert same(pick(tree, names), tree)
    for name in names:
        if tree[name].numel():
            other = {**tree, name: tree[name].clone()}
            other[name].view(-1)[0] += 1
            assert not same(other, tree)


@given(trees())
def test_functions_do_not_write_into_their_arguments(tree):
    before = digest({"": tree})
    add(tree, tree), sub(tree, tree), scale(tree, 3.0), axpy(2.0, tree, tree), lerp(tree, tree, 0.5), snapshot(tree)
    assert digest({"": tree}) == before


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_a_part_is_a_part_of_the_names_there_are(parameters, buffers, part):
    buffers -= parameters
    names = frozenset(parameters | buffers)
    layout = Layout(tuple(sorted(parameters)), tuple(sorted(buffers)), {"all": names, "p": frozenset(part) & names})
    assert set(layout.part("p")) == part & names
    assert layout.trainable("p") == part & parameters
    assert layout.trainable("all") == parameters
