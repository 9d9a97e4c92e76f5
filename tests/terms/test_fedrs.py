"""FedRS: the restricted softmax, class-weighted rows, and clipped, noised updates, against the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import ClassWeightedAggregation, GaussianNoise, RestrictedSoftmax
from fedexp.core.state import digest, global_norm, sub
from fedexp.errors import PlanError
from fedexp.testing import play, trial_after
from tests.helpers import Recorder, array, info, jobs_of, local_round, opened, round_of, served, step

COUNTS = [5, 0, 3, 0]


def problem(seed=0, n=6, d=5, classes=4):
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d, generator=rng, dtype=torch.float64)
    w = torch.randn(classes, d, generator=rng, dtype=torch.float64, requires_grad=True)
    return h, w, torch.tensor([0, 2, 0, 0, 2, 0])


def loss_of(rs, h, w, y):
    return F.cross_entropy(rs.logits(h @ w.T, step(h, y, counts=COUNTS)), y)


# ---------------------------------------------------------------- restricted softmax
def test_alpha_one_is_cross_entropy_to_the_bit():
    h, w, y = problem()
    z = (h @ w.T).float()
    assert torch.equal(RestrictedSoftmax(alpha=1.0).logits(z, step(h, y, counts=COUNTS)), z)
    same = [play(c, rounds=2).digests() for c in ({"rs": RestrictedSoftmax(alpha=1.0)}, {})]
    assert same[0] == same[1]


def test_alpha_zero_gives_missing_rows_exactly_no_gradient():
    h, w, y = problem()
    loss_of(RestrictedSoftmax(alpha=0.0), h, w, y).backward()
    assert w.grad is not None
    assert torch.equal(w.grad[[1, 3]], torch.zeros(2, 5, dtype=torch.float64))
    assert (w.grad[[0, 2]] != 0).any()


def test_alpha_zero_moves_missing_rows_by_weight_decay_only():
    from fedexp.client.optim import Sgd

    recorder = Recorder()
    with opened({"rs": RestrictedSoftmax(alpha=0.0), "r": recorder}, optimizer=Sgd(weight_decay=0.0)) as engine:
        round_of(engine)
    for local in recorder.rounds:
        before, after = local.received["classifier.weight"], local.ends["local"]["classifier.weight"]
        owned = local.info.owned
        assert torch.equal(before[~owned], after[~owned])
        assert not torch.equal(before[owned], after[owned])


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_gradient_is_that_of_the_paper(alpha):
    """dL/dw_c = a_c Σ_i (p_ic - [y_i = c]) h_i, written out and by finite differences."""
    h, w, y = problem()
    rs = RestrictedSoftmax(alpha=alpha)
    (given,) = torch.autograd.grad(loss_of(rs, h, w, y), w)
    a = np.float32([1, alpha, 1, alpha]).astype(float)
    z = array(h @ w.T) * a
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    written = a[:, None] * ((p - np.eye(4)[y.numpy()]).T @ array(h)) / len(y)
    np.testing.assert_allclose(array(given), written, rtol=1e-9, atol=1e-12)
    tiny_move = 1e-6
    for c, j in [(0, 0), (1, 2), (3, 4)]:
        ends = []
        for sign in (1, -1):
            moved = w.detach().clone()
            moved[c, j] += sign * tiny_move
            ends.append(loss_of(rs, h, moved, y).item())
        assert (ends[0] - ends[1]) / (2 * tiny_move) == pytest.approx(given[c, j].item(), rel=1e-5, abs=1e-8)


def test_modes_and_the_observed_threshold():
    counts = info([6, 2, 1, 0])
    factors = {
        "indicator": RestrictedSoftmax(alpha=0.5)._factors(counts),
        "count_max": RestrictedSoftmax(alpha=0.5, mode="count_max")._factors(counts),
        "count_sum": RestrictedSoftmax(alpha=0.5, mode="count_sum")._factors(counts),
        "two": RestrictedSoftmax(alpha=0.5, min_count=2)._factors(counts),
    }
    assert factors["indicator"].tolist() == [1, 1, 1, 0.5]
    np.testing.assert_allclose(array(factors["count_max"]), [1, 0.5 + 1 / 6, 0.5 + 1 / 12, 0.5], rtol=1e-6)
    np.testing.assert_allclose(array(factors["count_sum"]), [6 / 9, 2 / 9, 1 / 9, 0], rtol=1e-6)
    assert factors["two"].tolist() == [1, 1, 0.5, 0.5]


def test_the_test_uses_plain_logits():
    engine = trial_after({"rs": RestrictedSoftmax(alpha=0.0)}, rounds=0)
    assert not engine.algorithm.active("eval", "logits")
    h, w, y = problem()
    z = h @ w.T
    assert RestrictedSoftmax(alpha=0.0).logits(z, step(h, y)) is z


# ---------------------------------------------------------------- class-weighted rows
def uplinks(engine, counts, seed=0):
    rng = torch.Generator().manual_seed(seed)
    model = {k: v for k, v in engine.progress.state.model.items() if k in engine.algorithm.travelling}
    return {
        c: {
            "model": {k: v + torch.randn(v.shape, generator=rng) for k, v in model.items()},
            "rows.counts": {"value": torch.tensor(counts[c], dtype=torch.float32)},
        }
        for c in counts
    }


TABLE = {0: [3, 1, 0, 0], 2: [0, 2, 0, 4], 4: [1, 0, 0, 2]}


@pytest.mark.parametrize("smoothing", [0.0, 1.0, 10.0])
def test_rows_are_averaged_by_who_owns_the_class(smoothing):
    components = {"rows": ClassWeightedAggregation(smoothing=smoothing)}
    engine = trial_after(components, rounds=0)
    sent = uplinks(engine, TABLE)
    old = engine.progress.state.model["classifier.weight"]
    new = served(components, sent, engine=engine).model
    mass = np.array(list(TABLE.values()), dtype=float) + smoothing
    heads = np.stack([array(m["model"]["classifier.weight"]) for m in sent.values()])
    for c in range(4):
        if mass[:, c].sum() == 0:
            assert smoothing == 0
            assert c == 2
            assert torch.equal(new["classifier.weight"][c], old[c])
        else:
            expected = (mass[:, c, None] * heads[:, c]).sum(0) / mass[:, c].sum()
            np.testing.assert_allclose(array(new["classifier.weight"][c]), expected, rtol=1e-5, atol=1e-6)
    sizes = array(engine.algorithm.facts.counts.sum(1))[list(TABLE)]
    body = sum(s * array(m["model"]["features.1.weight"]) for s, m in zip(sizes, sent.values(), strict=True))
    np.testing.assert_allclose(array(new["features.1.weight"]), body / sizes.sum(), rtol=1e-4, atol=1e-6)


def test_much_smoothing_is_the_uniform_mean():
    components = {"rows": ClassWeightedAggregation(smoothing=1e7)}
    engine = trial_after(components, rounds=0)
    sent = uplinks(engine, TABLE)
    mean = np.mean([array(m["model"]["classifier.weight"]) for m in sent.values()], axis=0)
    new = served(components, sent, engine=engine).model["classifier.weight"]
    np.testing.assert_allclose(array(new), mean, atol=1e-5)


def test_rows_that_do_not_travel_cannot_be_averaged():
    from fedexp.algos.fedgela import EquiangularHead

    with pytest.raises(PlanError, match="smoothing is for averaging the classifier"):
        trial_after({"rows": ClassWeightedAggregation(), "etf": EquiangularHead()}, rounds=0)


# ---------------------------------------------------------------- noise
def test_a_long_update_is_clipped_to_one_norm_and_a_short_one_is_not():
    received = {"a": torch.zeros(40, 50), "b": torch.zeros(7)}
    noise = GaussianNoise(clip=20.0, sigma=1e-9)
    for length, expected in ((100.0, 20.0), (3.0, 3.0)):
        direction = {"a": torch.randn(40, 50, generator=torch.Generator().manual_seed(1)), "b": torch.ones(7)}
        size = float(global_norm(direction))
        weights = {k: v * length / size for k, v in direction.items()}
        sent = sub(noise.uplink(weights, local_round(received)), received)
        assert float(global_norm(sent)) == pytest.approx(expected, rel=1e-5)
        cosine = sum((sent[k] * weights[k]).sum() for k in sent) / float(global_norm(sent)) / length
        assert float(cosine) == pytest.approx(1.0, abs=1e-5)


def test_noise_has_its_standard_deviation_and_is_fresh():
    received = {"a": torch.zeros(200, 500)}
    noise = GaussianNoise(sigma=0.1)
    draws = [
        noise.uplink(received, local_round(received, client=c, round_=t))["a"] for c, t in ((0, 0), (1, 0), (0, 1))
    ]
    for draw in draws:
        assert float(draw.std()) == pytest.approx(0.1, rel=0.01)
        assert abs(float(draw.mean())) < 0.002
    for one, two in ((0, 1), (0, 2), (1, 2)):
        correlation = float((draws[one] * draws[two]).mean()) / 0.01
        assert abs(correlation) < 0.02
    again = noise.uplink(received, local_round(received))
    assert digest({"": again}) == digest({"": {"a": draws[0]}})


def test_epsilon_is_the_papers():
    noise = GaussianNoise()
    assert f"{noise.epsilon:.4f}" == "3.1075"
    assert "3.1075" in noise.note()
    assert noise.epsilon == pytest.approx(np.sqrt(2 * np.log(1.25 / 0.01)) * (2 * 20 / 400) / 0.1)


def test_noise_reaches_the_wire_and_not_the_buffers():
    recorder = Recorder()
    with opened({"noise": GaussianNoise(), "r": recorder}, norm=True) as engine:
        (job,) = jobs_of(engine, [1])
        sent = engine.executor._worker.work(job).uplink["model"]
    end = recorder.rounds[0].ends["local"]
    for name, value in sent.items():
        if name in engine.algorithm.facts.layout.statistics:
            assert torch.equal(value, end[name])
        else:
            assert 0.01 < float((value - end[name]).std()) < 0.3
