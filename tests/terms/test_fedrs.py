"""FedRS: the restricted softmax, class-weighted rows, and clipped, noised updates, against the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import ClassWeightedAggregation, GaussianNoise, RestrictedSoftmax, composed_epsilon
from fedexp.algos.scaffold import Scaffold
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.seeding import seeded
from fedexp.core.state import digest, global_norm, sub
from fedexp.errors import PlanError
from fedexp.models.split import SplitModel
from fedexp.testing import play, trial_after
from tests.helpers import Recorder, array, jobs_of, local_round, opened, round_of, served, step, tiny, work

COUNTS = [5, 0, 3, 0]


def problem(seed=0, n=6, d=5, classes=4):
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(n, d, generator=rng, dtype=torch.float64)
    w = torch.randn(classes, d, generator=rng, dtype=torch.float64, requires_grad=True)
    return h, w, torch.tensor([0, 2, 0, 0, 2, 0])


def turn(rs, h, y, classifier=None):
    """A step of the client with COUNTS, whose network has this classifier; one without bias if none is given."""
    classifier = classifier or torch.nn.Linear(h.shape[1], 4, bias=False)
    factors = {"value": rs._factors(torch.tensor([COUNTS], dtype=torch.float32))}
    made = step(h, y, counts=COUNTS, slots={"mine": {"factors": factors}})
    made.frame.net = SplitModel(torch.nn.Identity(), classifier, h.shape[1])
    made.frame.classify = lambda h, _: made.frame.net.classifier(h)
    return made


def linear_net(*, norm, shift=0.0):
    """Pixels as features, and a classifier with bias."""
    assert not norm
    with seeded(0, "linear net"):
        made = SplitModel(torch.nn.Flatten(), torch.nn.Linear(16, 4), 16)
    with torch.no_grad():
        made.classifier.bias += shift
    return made


def loss_of(rs, h, w, y):
    return F.cross_entropy(rs.logits(h @ w.T, turn(rs, h, y)), y)


# ---------------------------------------------------------------- restricted softmax
def test_alpha_one_is_cross_entropy_to_the_bit():
    h, w, y = problem()
    z = (h @ w.T).float()
    rs = RestrictedSoftmax(alpha=1.0)
    assert torch.equal(rs.logits(z, turn(rs, h, y)), z)
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
    counts = torch.tensor([[6.0, 2, 1, 0], [0, 0, 0, 0]])
    given = {
        "indicator": RestrictedSoftmax(alpha=0.5)._factors(counts),
        "count_max": RestrictedSoftmax(alpha=0.5, mode="count_max")._factors(counts),
        "count_sum": RestrictedSoftmax(alpha=0.5, mode="count_sum")._factors(counts),
        "two": RestrictedSoftmax(alpha=0.5, min_count=2)._factors(counts),
    }
    assert all(torch.isfinite(table).all() for table in given.values())  # a client without samples has factors too
    factors = {name: table[0] for name, table in given.items()}
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


@pytest.mark.parametrize("bias", ["kept", "scaled", "dropped"])
@pytest.mark.parametrize("deep", [False, True])
def test_what_becomes_of_a_classifiers_bias(bias, deep):
    """Eq. 8 scales w·h alone; the gradient of an unscaled bias is p - y, that of a dropped one is zero."""
    h, _, y = problem()
    with seeded(0, "classifier"):
        last = torch.nn.Linear(5, 4, dtype=torch.float64)
        classifier = torch.nn.Sequential(torch.nn.Linear(5, 5, dtype=torch.float64), torch.nn.ReLU(), last)
    if not deep:
        classifier = last
    rs = RestrictedSoftmax(alpha=0.25, bias=bias)
    z = rs.logits(classifier(h), turn(rs, h, y, classifier))
    a, b = np.array([1, 0.25, 1, 0.25]), array(last.bias)
    product = array(classifier(h)) - b
    written = a * product + {"kept": b, "scaled": a * b, "dropped": 0 * b}[bias]
    np.testing.assert_allclose(array(z), written, rtol=1e-12, atol=1e-12)
    F.cross_entropy(z, y).backward()
    p = np.exp(written) / np.exp(written).sum(1, keepdims=True)
    residual = (p - np.eye(4)[y.numpy()]).mean(0)
    expected = residual * {"kept": 1, "scaled": a, "dropped": 0 * a}[bias]
    np.testing.assert_allclose(array(last.bias.grad), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bias", ["kept", "dropped"])
def test_the_bias_of_a_classifier_that_is_replaced_is_left_alone(bias):
    """With FedGELA's frame the network's own classifier takes no part, nor does its bias, trained or not."""
    from fedexp.algos.fedgela import EquiangularHead

    parts = {"rs": RestrictedSoftmax(alpha=0.25, bias=bias), "etf": EquiangularHead(energy=10.0)}
    ends = []
    for shift in (0.0, 5.0):
        engine = trial_after(parts, rounds=1, net=lambda *, norm, shift=shift: linear_net(norm=norm, shift=shift))
        ends.append({n: v for n, v in engine.progress.state.model.items() if not n.startswith("classifier")})
    assert ends[0]
    assert digest({"": ends[0]}) == digest({"": ends[1]})


def test_a_bias_in_training():
    """Through the worker: with alpha = 0 the rows of missing classes stay, and a kept bias moves all the same."""

    from fedexp.client.optim import Sgd

    for bias, moves in (("kept", True), ("scaled", False), ("dropped", False)):
        recorder = Recorder()
        parts = {"rs": RestrictedSoftmax(alpha=0.0, bias=bias), "r": recorder}
        with opened(parts, net=linear_net, optimizer=Sgd(weight_decay=0.0)) as engine:
            work(engine, 1)
        (local,) = recorder.rounds
        missing = ~local.info.owned
        change = {n: v - local.received[n] for n, v in local.ends["local"].items()}
        assert missing.any()
        assert (change["classifier.weight"][missing] == 0).all()
        assert (change["classifier.bias"][missing] != 0).all().item() is moves


def test_the_plan_shows_each_clients_factors():
    import io

    from rich.console import Console

    experiment = tiny("algo=fedrs", "algo.rs.alpha=0.25", "partition.max_classes=3")
    shown = experiment.plan.content["constants_by_class"]["rs.factors"]
    assert shown == [[1.0 if n else 0.25 for n in row] for row in experiment.plan.content["partition"]["counts"]]
    assert {v for row in shown for v in row} == {1.0, 0.25}
    console = Console(file=io.StringIO(), width=140)
    experiment.plan.show(console)
    assert "rs.factors, class × client" in console.file.getvalue()
    assert "0.25" in console.file.getvalue()
    many = tiny("algo=fedrs", "cohort.clients=30").plan
    console = Console(file=io.StringIO(), width=140)
    many.show(console)
    assert "rs.factors, class × client (first 20 of 30)" in console.file.getvalue()


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
    assert "3.1075" in noise.note(trial_after({}, rounds=0).algorithm.facts)
    assert noise.epsilon == pytest.approx(np.sqrt(2 * np.log(1.25 / 0.01)) * (2 * 20 / 400) / 0.1)


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.01), (0.3, 1e-5), (14.0, 0.01), (70.0, 1e-6), (1e-3, 0.01)])
def test_the_epsilon_of_gaussian_noise_is_the_smallest_one(mu, delta):
    """δ(ε) of Balle and Wang, theorem 8, by integrating the privacy loss over its normal distribution."""
    epsilon = composed_epsilon(mu, delta)
    loss = mu**2 / 2 + mu * np.linspace(-40, 40, 2_000_001)  # N(μ²/2, μ²)
    density = np.exp(-(((loss - mu**2 / 2) / mu) ** 2) / 2) / np.sqrt(2 * np.pi)

    def spent(epsilon):
        return float((density * np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0)).sum() * 80 / 2_000_000)

    if spent(0.0) <= delta:
        assert epsilon == pytest.approx(0, abs=1e-6)
    else:
        assert spent(epsilon) == pytest.approx(delta, rel=1e-3)


def test_the_statement_counts_all_rounds_of_the_run():
    """Releases compose to one with √rounds times the sensitivity; the paper counts one."""
    experiment = tiny("algo=fedrs_noise", "rounds=9")
    noise = experiment.algorithm.components["noise"]
    said = noise.note(experiment.algorithm.facts)
    assert noise.rounds == 9
    assert f"({composed_epsilon(3.0, 0.01):.4g}, 0.01) for a client that takes part in 9 rounds" in said
    assert composed_epsilon(3.0, 0.01) > 3 * composed_epsilon(1.0, 0.01)
    assert composed_epsilon(1.0, 0.01) < GaussianNoise().epsilon  # the paper's formula is an upper bound of one release


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("min_samples", [1, 400])
def test_the_statement_says_where_it_does_not_hold(norm, min_samples):
    """The paper's m is the smallest local training set; clients of the trial have one sample or more."""
    facts = trial_after({}, rounds=0, norm=norm).algorithm.facts
    said = GaussianNoise(min_samples=min_samples).note(facts)
    assert ("Neither holds in this run" in said) is (norm or min_samples == 400)
    assert ("a client has 1 training samples, fewer than min_samples=400" in said) is (min_samples == 400)
    assert ("statistics of normalisation layers are sent without noise" in said) is norm


@pytest.mark.parametrize(
    ("other", "message"),
    [({"scaffold": Scaffold()}, r"scaffold\.dc"), ({"rows": ClassWeightedAggregation()}, r"rows\.counts")],
)
def test_noise_refuses_what_other_components_send_without_it(other, message):
    for parts in ({"noise": GaussianNoise(), **other}, {**other, "noise": GaussianNoise()}):
        with pytest.raises(
            PlanError, match=rf"'noise' puts noise on the model only, and {message} would be sent without"
        ):
            trial_after(parts, rounds=0)
    play({"noise": GaussianNoise(), "rs": RestrictedSoftmax()}, rounds=1)


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


@pytest.mark.parametrize("name", ["fedlc", "fedrod", "fedgela"])
def test_missing_classes_that_are_left_out_of_the_softmax_need_no_restriction(name):
    """As the docstring says: it changes nothing beside these methods."""
    method = {key: make(node) for key, node in composed([f"algo={name}"])["algo"].items()}
    alone, both = (play(parts, rounds=2) for parts in (method, {**method, "rs": RestrictedSoftmax(alpha=0.5)}))
    assert digest({"": alone.progress.state.model}) == digest({"": both.progress.state.model})
