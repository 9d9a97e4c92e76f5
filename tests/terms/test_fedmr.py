"""FedMR: the intra- and inter-class losses against the paper's formulas, in both readings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos import fedmr
from fedexp.algos.fedmr import ManifoldReshape, correlation, margin
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.prototypes import ClassMeans
from fedexp.core.seeding import seeded
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import play, trial_after
from tests.helpers import array, played, step, tiny

EPS = 1e-8


def batch(sizes=(7, 5), d=32, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])
    mixing = torch.randn(d, d, generator=rng, dtype=dtype)
    z = torch.randn(len(y), d, generator=rng, dtype=dtype) @ mixing + y[:, None]
    order = torch.randperm(len(y), generator=rng)
    return z[order].requires_grad_(), y[order]


def covariance(z, *, unbiased):
    """M of sect. 3.3.1: features standardised by dimension, XᵀX/(n - 1)."""
    z = z - z.mean(0)
    x = z / np.sqrt((z**2).sum(0) / (len(z) - (1 if unbiased else 0)) + EPS)
    return x.T @ x / (len(z) - 1)


def public_code(z, y):
    """The public code in words: off-diagonal squares of XᵀX, averaged, summed over classes, over the samples."""
    total, samples = 0.0, 0
    d = z.shape[1]
    for c in np.unique(y):
        own = z[y == c]
        if len(own) < 2:
            continue
        r = covariance(own, unbiased=True) * (len(own) - 1)
        total += (r[~np.eye(d, dtype=bool)] ** 2).mean()
        samples += len(own)
    return total / samples


def eq3(z, y):
    terms = [(covariance(z[y == c], unbiased=False) ** 2).sum() for c in np.unique(y) if (y == c).sum() > 1]
    return np.mean(terms)


# ---------------------------------------------------------------- intra
@pytest.mark.parametrize("gram", [0, 10_000], ids=["covariance", "gram"])
@pytest.mark.parametrize(("sizes", "d"), [((7, 5), 32), ((40, 1, 30), 6), ((2, 2, 2, 2), 3)])
def test_intra_is_the_public_codes_and_eq_3(monkeypatch, gram, sizes, d):
    """Both products of the Gram identity give both forms."""
    monkeypatch.setattr(fedmr, "GRAM", gram)
    z, y = batch(sizes, d)
    code = correlation(z, y, 6, form="code", eps=EPS).item()
    paper = correlation(z, y, 6, form="paper", eps=EPS).item()
    assert code == pytest.approx(public_code(array(z), y.numpy()), rel=1e-6)
    assert paper == pytest.approx(eq3(array(z), y.numpy()), rel=1e-6)


def test_the_smaller_product_is_made(monkeypatch):
    """n ≤ d: n × n, always; n > d: n × n only for small batches."""
    made = []
    monkeypatch.setattr(fedmr, "_gram_squares", lambda x, y, m: made.append("n") or x.new_zeros(3))
    monkeypatch.setattr(fedmr, "_covariance_squares", lambda x, y, c: made.append("d") or x.new_zeros(3))
    for n, d in ((300, 512), (128, 16), (300, 16)):
        correlation(torch.randn(n, d), torch.zeros(n, dtype=torch.int64), 3, form="code", eps=EPS)
    assert made == ["n", "n", "d"]


def test_exact_relation_of_the_two_forms_and_lemma_1():
    z, y = batch((7,), 32)
    m = covariance(array(z), unbiased=True)
    n, d = 7, 32
    expected = (n - 1) ** 2 / (d * (d - 1)) * ((m**2).sum() - d)
    assert correlation(z, y, 4, form="code", eps=EPS).item() * n == pytest.approx(expected, rel=1e-6)
    spectrum = np.linalg.eigvalsh(m)
    assert ((spectrum - spectrum.mean()) ** 2).sum() == pytest.approx((m**2).sum() - d, rel=1e-6)


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("gram", [0, 10_000], ids=["covariance", "gram"])
def test_intra_gradient_by_finite_differences(monkeypatch, form, gram):
    monkeypatch.setattr(fedmr, "GRAM", gram)
    z, y = batch((4, 3, 1), 3)
    assert torch.autograd.gradcheck(lambda v: correlation(v, y, 4, form=form, eps=1e-3), z)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_lonely_samples_and_dead_dimensions_are_safe(form):
    z, y = batch((1, 1, 1), 4)
    loss = correlation(z, y, 5, form=form, eps=EPS)
    (gradient,) = torch.autograd.grad(loss, z)
    assert isinstance(loss, torch.Tensor)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    z, y = batch((3, 1), 4, dtype=torch.float32)
    z = z.detach()
    z[:, 1] = 0
    z.requires_grad_()
    loss = correlation(z, y, 5, form=form, eps=EPS)
    (gradient,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert torch.equal(gradient[y == 1], torch.zeros(1, 4))
    same = torch.ones(4, 3, requires_grad=True)
    loss = correlation(same, torch.zeros(4, dtype=torch.int64), 2, form=form, eps=EPS)
    (gradient,) = torch.autograd.grad(loss, same)
    assert torch.isfinite(gradient).all()
    one_wide = correlation(torch.randn(4, 1), torch.zeros(4, dtype=torch.int64), 2, form=form, eps=EPS)
    assert torch.isfinite(one_wide)


def test_a_dimension_that_is_nearly_constant_does_not_decide_the_gradient():
    """With the default eps its gradient is at most ten times that of a dimension with variance 1."""
    z, y = batch((40, 30), 4)
    z = (F.normalize(z.detach() - z.detach().mean(0), dim=0) * len(y) ** 0.5) * torch.tensor([1.0, 1e-2, 1e-4, 1e-6])
    mr = ManifoldReshape(intra=1.0, inter=0.0)
    terms = mr.loss(step(z.requires_grad_(), y))
    (gradient,) = torch.autograd.grad(terms["intra"], z)
    sizes = gradient.norm(dim=0)
    assert (sizes[1:] <= 20 * sizes[0]).all()
    assert terms["intra"].item() == pytest.approx(correlation(z, y, 4, form="paper", eps=1e-2).item())


def test_two_trainings_that_differ_by_a_rounding_error_end_alike():
    """In double precision, over the steps of a round: what eps = 1e-8 takes apart by much more."""

    def trained(nudge):
        with seeded(0, "net"):
            net = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU()).double()
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            net[0].weight += nudge * torch.randn(32, 6, generator=rng, dtype=torch.float64)
        sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        mr = ManifoldReshape(intra=1 / 32**2, inter=0.0, form="paper")
        for index in range(60):
            x, y = batch((16, 16), 6, seed=index)
            loss = mr.loss(step(net(x.detach() / 6), y))["intra"]
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        return net[0].weight.detach()

    assert (trained(1e-14) - trained(0.0)).abs().max() < 1e-11


# ---------------------------------------------------------------- inter
def eq4(z, y, g, known, rivals):
    pairs = []
    for own in np.unique(y):
        for other in range(len(g)):
            if other == own or not known[own] or not rivals[other]:
                continue
            mine = z[y == own]
            near = np.linalg.norm(mine - g[own], axis=1)
            far = np.linalg.norm(mine - g[other], axis=1)
            pairs.append(np.maximum(near - far, 0).mean())
    return np.mean(pairs) if pairs else 0.0


@pytest.mark.parametrize("known", [(1, 1, 1, 1), (1, 0, 1, 1), (0, 1, 0, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("negatives", ["all", "observed"])
def test_inter_is_eq_4_over_the_chosen_rivals(known, negatives):
    z, y = batch((4, 3, 2), 5)
    g = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = [9, 4, 2, 0]
    slots = {"means": {"means": {"value": g, "known": torch.tensor(known, dtype=torch.float32)}}}
    given = ManifoldReshape(intra=0.0, inter=0.5, negatives=negatives).loss(step(z, y, counts=counts, slots=slots))
    rivals = [k and (negatives == "all" or n > 0) for k, n in zip(known, counts, strict=True)]
    expected = 0.5 * eq4(array(z), y.numpy(), array(g), known, rivals)
    assert list(given) == (["inter"] if any(known) else [])
    assert (given["inter"].item() if given else 0.0) == pytest.approx(expected, rel=1e-9)


def test_inter_at_the_prototype_and_at_a_rivals():
    g = torch.tensor([[0.0, 0.0], [3.0, 4.0], [100.0, 0.0]])
    everybody = torch.ones(3, dtype=torch.bool)
    at_own = g[:1].clone().requires_grad_()
    zero = torch.zeros(1, dtype=torch.int64)
    loss = margin(at_own, zero, g, known=everybody, rivals=everybody)
    (gradient,) = torch.autograd.grad(loss, at_own)
    assert loss.item() == 0
    assert torch.isfinite(gradient).all()
    at_rival = g[1:2].clone().requires_grad_()
    loss = margin(at_rival, zero, g, known=everybody, rivals=everybody)
    (gradient,) = torch.autograd.grad(loss, at_rival)
    assert loss.item() == pytest.approx(5 / 2)  # the distance to its own, over two pairs
    assert torch.isfinite(gradient).all()
    only_own = torch.tensor([True, False, False])
    alone = margin(at_rival, zero, g, known=everybody, rivals=only_own)
    assert alone.item() == 0
    assert torch.autograd.grad(alone, at_rival)[0].abs().sum() == 0


def test_inter_gradient_by_finite_differences():
    z, y = batch((3, 2), 4)
    g = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    known = torch.tensor([True, True, False, True])
    assert torch.autograd.gradcheck(lambda v: margin(v, y, g, known=known, rivals=known), z)


def test_a_class_weighs_the_same_however_many_samples_it_has():
    g = torch.tensor([[0.0], [10.0]])
    z, y = torch.tensor([[9.0], [4.0], [4.0], [4.0]]), torch.tensor([0, 1, 1, 1])
    everybody = torch.ones(2, dtype=torch.bool)
    assert margin(z, y, g, known=everybody, rivals=everybody).item() == pytest.approx((8 + 2) / 2)


def test_lite_draws_samples_anew_at_each_step(monkeypatch):
    seen = []
    monkeypatch.setattr(fedmr, "margin", lambda z, y, *a, **k: seen.append((array(z), y.clone())) or z.sum())
    z, y = batch((30, 34), 3)
    slots = {"means": {"means": {"value": torch.zeros(4, 3), "known": torch.ones(4)}}}
    mr = ManifoldReshape(intra=0.0, lite=10)
    for index in (0, 1, 0):
        mr.loss(step(z, y, slots=slots, index=index))
    ManifoldReshape(intra=0.0, lite=64).loss(step(z, y, slots=slots))
    assert [len(s[1]) for s in seen] == [10, 10, 10, 64]
    assert not np.array_equal(seen[0][0], seen[1][0])
    assert np.array_equal(seen[0][0], seen[2][0])
    rows = {tuple(row): int(label) for row, label in zip(array(z), y, strict=True)}
    for drawn, labels in seen:
        assert [rows[tuple(r)] for r in drawn] == labels.tolist()
        assert len({tuple(r) for r in drawn}) == len(drawn)


# ---------------------------------------------------------------- the component
def test_zero_weights_cost_nothing(monkeypatch):
    def never(*_, **__):
        raise AssertionError("computed for nothing")

    monkeypatch.setattr(fedmr, "correlation", never)
    monkeypatch.setattr(fedmr, "margin", never)
    z, y = batch((3, 3), 4)
    slots = {"means": {"means": {"value": torch.zeros(4, 4), "known": torch.zeros(4)}}}
    assert ManifoldReshape(intra=0.0, inter=0.0).loss(step(z, y)) == {}
    assert ManifoldReshape(intra=0.0, inter=1.0).loss(step(z, y, slots=slots)) == {}
    assert ManifoldReshape(intra=0.0, inter=0.0).needs == ()


def test_without_a_margin_prototypes_may_be_left_out():
    mr = ManifoldReshape(inter=0.0)
    engine = play({"mr": mr}, rounds=2)
    assert "~algo.means" in mr.note(engine.algorithm.facts)
    with_means = play({"means": ClassMeans(), "mr": mr}, rounds=2)
    assert digest({"": engine.progress.state.model}) == digest({"": with_means.progress.state.model})
    assert engine.ledger.up < with_means.ledger.up
    with pytest.raises(PlanError, match="needs 'means'"):
        trial_after({"mr": ManifoldReshape()}, rounds=0)


def test_neutral_is_fedavg_and_the_rest_is_not(tmp_path):
    """To the bit at 0 and 0; the margin sets in with the prototypes, in the second round."""
    plain = played(tmp_path / "plain")
    for intra, inter in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.5)):
        overrides = ("algo=fedmr", f"algo.mr.intra={intra}", f"algo.mr.inter={inter}")
        engine = played(tmp_path / f"{intra}-{inter}", *overrides)
        terms = [{k: v for k, v in r["terms"].items() if k != "local/ce"} for r in engine.records]
        first = ["local/mr.intra"] if intra else []
        assert [list(t) for t in terms] == [first, [*first, *(["local/mr.inter"] if inter else [])]]
        assert all(v > 0 for t in terms for v in t.values())
        assert (engine.digests()["model"] == plain.digests()["model"]) == (intra == inter == 0)


def test_composes_with_restricted_softmax():
    engine = play({"rs": RestrictedSoftmax(alpha=0.5), "mr": ManifoldReshape(), "means": ClassMeans()})
    assert {"local/mr.intra", "local/mr.inter"} <= set(engine.records[-1]["terms"])


def test_from_its_files():
    usual = tiny("algo=fedmr").algorithm.components["mr"]
    assert usual == ManifoldReshape()  # the file and the class agree
    assert (usual.form, usual.eps, usual.lite) == ("paper", 0.01, None)
    lite = tiny("algo=fedmr_lite", "algo.mr.intra=0.1", "algo.mr.inter=0").algorithm.components["mr"]
    assert (lite.lite, lite.intra, lite.inter) == (10, 0.1, 0)
