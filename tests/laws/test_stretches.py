"""Laws of how a test set is divided."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fedexp.evaluate.tester import BatchSpans


@given(st.integers(1, 5000), st.integers(1, 1200), st.integers(1, 40))
def test_stretches_cover_everything_once_in_whole_batches_about_equally(samples, batch, parts):
    cut = BatchSpans(samples, batch)(parts)
    batches = -(-samples // batch)
    assert cut[0][0] == 0
    assert cut[-1][1] == samples
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    assert all(begin < end and begin % batch == 0 for begin, end in cut)
    assert len(cut) == min(parts, batches)
    sizes = [-(-(end - begin) // batch) for begin, end in cut]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 5000), st.integers(1, 1200), st.integers(1, 40))
def test_the_batches_are_the_same_for_any_number_of_workers(samples, batch, parts):
    def batches(n):
        cut = BatchSpans(samples, batch)(n)
        return [(i, min(i + batch, end)) for begin, end in cut for i in range(begin, end, batch)]

    assert batches(parts) == batches(1)
