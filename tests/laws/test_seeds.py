"""Laws of seeds, cohorts and batches."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedexp.core.seeding import derive, numpy_rng, torch_rng
from fedexp.data.federated import Batches, batch_sizes
from fedexp.data.source import Samples
from fedexp.server.sampler import UniformSampler, cohort_size

steps = st.one_of(st.integers(-5, 10**6), st.text("abcdefgh_0123456789", max_size=6))
paths = st.lists(steps, max_size=5).map(tuple)


@given(st.integers(), paths, st.integers(), paths)
def test_distinct_addresses_have_distinct_seeds(seed, path, other_seed, other_path):
    same = (seed, *map(_typed, path)) == (other_seed, *map(_typed, other_path))
    assert (derive(seed, *path) == derive(other_seed, *other_path)) == same


def _typed(step: int | str) -> tuple[type, int | str]:
    return type(step), step


@given(st.integers(), paths)
def test_a_seed_suits_every_generator(seed, path):
    value = derive(seed, *path)
    assert 0 <= value < 2**63
    assert numpy_rng(seed, *path).random() == numpy_rng(seed, *path).random()
    one, two = (torch.rand(3, generator=torch_rng(seed, *path)) for _ in range(2))
    assert torch.equal(one, two)


@given(st.integers(0, 2**31), st.integers(0, 200), st.integers(1, 60), st.floats(0.001, 1.0))
def test_a_cohort_is_a_sorted_set_of_clients(seed, round_, clients, fraction):
    cohort = UniformSampler(seed, clients, fraction)(round_)
    assert len(cohort) == cohort_size(clients, fraction)
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert 1 <= len(cohort) <= clients
    assert abs(len(cohort) - fraction * clients) <= 1


@given(st.integers(1, 300), st.integers(1, 70))
def test_batches_make_up_the_samples(n, size):
    sizes = batch_sizes(n, size)
    assert sum(sizes) == n
    assert all(s == size for s in sizes[:-1])
    assert sizes[-1] <= size + 1
    assert 1 not in sizes or size == 1 or n == 1


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 10**6), st.data())
def test_stretches_of_batches_concatenate(n, size, seed, data):
    samples = Samples(torch.arange(float(n)).view(n, 1), torch.zeros(n, dtype=torch.long))
    rows = torch.arange(n)
    per_epoch = len(batch_sizes(n, size))
    end = 2 * per_epoch
    middle = data.draw(st.integers(0, end))

    def drawn(a: int, b: int) -> list[list[float]]:
        return [x.flatten().tolist() for x, _ in Batches(samples, rows.device, rows, size, a, b, seed, None)]

    whole = drawn(0, end)
    assert drawn(0, middle) + drawn(middle, end) == whole
    for epoch in (whole[:per_epoch], whole[per_epoch:]):
        assert sorted(v for batch in epoch for v in batch) == list(range(n))
