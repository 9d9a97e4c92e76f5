"""FedGELA: the frame, the logits, the local adaptation and its variants, and its two ablations."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedgela import EquiangularHead, LocalAdaptation, frame
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.client.network import load
from fedexp.client.optim import Sgd
from fedexp.core.seeding import seeded
from fedexp.errors import ConfigError, PlanError
from fedexp.models.lenet import lenet
from fedexp.models.mlp import mlpnet
from fedexp.models.resnet import resnet
from fedexp.models.split import check_network
from fedexp.models.tfcnn import tfcnn
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import Recorder, array, jobs_of, opened, played, round_of, step, tiny, work

ALL = LocalAdaptation(softmax="all")
GELA = {"etf": EquiangularHead(energy=100.0), "la": LocalAdaptation()}


def frame_of(engine):
    return engine.algorithm.constants["etf.frame"]["value"]


# ---------------------------------------------------------------- the frame
@pytest.mark.parametrize(("classes", "width"), [(2, 2), (10, 10), (10, 84), (100, 512)])
def test_frame_is_a_simplex(classes, width):
    from dataclasses import replace

    engine = trial_after({}, rounds=0)
    init = replace(engine.algorithm.init("etf.frame"), n_classes=classes, feature_dim=width)
    m = array(frame(init)["value"])
    assert m.shape == (classes, width)
    gram = m @ m.T
    np.testing.assert_allclose(np.diag(gram), 1, atol=1e-6)
    np.testing.assert_allclose(gram[~np.eye(classes, dtype=bool)], -1 / (classes - 1), atol=1e-6)
    np.testing.assert_allclose(m.sum(0), 0, atol=1e-6)
    degrees = np.degrees(np.arccos(gram[0, 1].clip(-1, 1)))
    if classes in (10, 100):
        assert degrees == pytest.approx({10: 96.38, 100: 90.58}[classes], abs=0.01)


def test_frame_comes_from_the_seed_and_is_never_sent():
    frames = [tiny("algo=fedge", f"seed={s}").algorithm.constants["etf.frame"]["value"] for s in (0, 0, 1)]
    assert torch.equal(frames[0], frames[1])
    assert not torch.equal(frames[0], frames[2])
    plan = tiny("algo=fedgela").plan.content
    assert set(plan["messages"]["down"]) == set(plan["messages"]["up"]) == {"model"}
    assert plan["parameters"]["shared"] == plan["parameters"]["features"] + 16 * 16 + 16  # and the projection
    linear = tiny("algo=fedgela", "algo.etf.projection=false", "model.final_relu=false").plan.content["parameters"]
    assert linear["shared"] == linear["features"]


def test_a_narrow_network_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.etf\.energy is that of 10 class vectors .* has 9"):
        tiny("algo=fedgela", "model.hidden=[9]")
    with pytest.raises(PlanError, match="energy must be greater than 0"):
        trial_after({"etf": EquiangularHead(energy=0.0)}, rounds=0)
    with pytest.raises(PlanError, match="during must be"):
        trial_after({"etf": EquiangularHead(during=("local",))}, rounds=0)


# ---------------------------------------------------------------- the projection
def test_features_behind_a_relu_are_refused_without_a_projection():
    with pytest.raises(ConfigError, match=r"^algo\.etf\.projection=false needs .* end in a ReLU .*projection=true"):
        tiny("algo=fedge", "algo.etf.projection=false")
    tiny("algo=fedge", "algo.etf.projection=false", "model.final_relu=false")
    tiny("algo=fedge")


@pytest.mark.parametrize(
    ("network", "signed"),
    [
        (mlpnet, False),
        (partial(mlpnet, final_relu=False), True),
        (lenet, False),
        (tfcnn, False),  # pooling behind a ReLU
        (partial(resnet, blocks=(1, 1, 1)), False),  # pooling behind a block that ends in one
        (partial(resnet, blocks=(1, 1, 1), hidden=32), True),
    ],
)
def test_whether_features_can_be_negative_is_found_by_trying(network, signed):
    rng = torch.Generator().manual_seed(0)
    with seeded(0, "network"):
        net = network((1, 28, 28), 10)
    check_network(net, torch.randn(2, 1, 28, 28, generator=rng), 10)
    assert net.signed is signed


def test_the_projection_is_trained_sent_and_part_of_every_answer():
    recorder = Recorder()
    with opened({**GELA, "r": recorder}, fraction=1.0) as engine:
        before = {n: v.clone() for n, v in engine.progress.state.model.items() if "projection" in n}
        after = {n: v for n, v in round_of(engine).model.items() if "projection" in n}
    assert len(before) == 2
    assert all(not torch.equal(before[n], after[n]) for n in before)
    sizes = np.array([r.info.n for r in recorder.rounds], dtype=float)
    for name, value in after.items():
        ends = np.stack([array(r.ends["local"][name]) for r in recorder.rounds])
        mean = np.tensordot(sizes / sizes.sum(), ends, 1)
        np.testing.assert_allclose(array(value), mean, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- logits
def logits(h, m, *, counts=None, la=None, phase="local", slots=None, etf=None):
    y = torch.zeros(len(h), dtype=torch.int64)
    views = {"etf": {"frame": {"value": m}}, "la": slots or {}}
    turn = step(h, y, counts=counts, slots=views, phase=phase, n_classes=len(m))
    z = (etf or EquiangularHead(energy=900.0, feature_energy=4.0, projection=False)).head(h, turn.for_component("etf"))
    return z if la is None else la.logits(z, turn.for_component("la"))


def test_logits_written_out():
    """√(E_W E_H) Φ_kc m_c·z/‖z‖ with Φ_kc = C n_kc / n_k; a missing class has the logit 0; the server has Φ = 1."""
    h, m = torch.randn(6, 8), F.normalize(torch.randn(4, 8))
    counts = [6, 1, 0, 3]
    unit = array(h) / np.linalg.norm(array(h), axis=1, keepdims=True)
    plain = 60 * unit @ array(m).T
    phi = 4 * np.array(counts) / 10
    la = ALL
    np.testing.assert_allclose(array(logits(h, m)), plain, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(array(logits(h, m, counts=counts)), plain, rtol=1e-4, atol=1e-4)
    for phase in ("local", "eval"):
        given = logits(h, m, counts=counts, la=la, phase=phase)
        np.testing.assert_allclose(array(given), plain * phi, rtol=1e-4, atol=1e-4)
        assert torch.equal(given[:, 2], torch.zeros(6))
    np.testing.assert_allclose(array(logits(h, m, la=la, phase="eval")), plain, rtol=1e-4, atol=1e-4)


def test_softmax_over_owned_classes_is_eq_5():
    h, m = torch.randn(6, 8), F.normalize(torch.randn(4, 8))
    counts = [6, 0, 0, 4]
    y = torch.tensor([0, 3, 0, 0, 3, 0])
    z = logits(h, m, counts=counts, la=LocalAdaptation(softmax="owned"))
    everything = array(logits(h, m, counts=counts, la=ALL))[:, [0, 3]]
    p = np.exp(everything) / np.exp(everything).sum(1, keepdims=True)
    written = -np.log(p[np.arange(6), (y == 3).int().numpy()]).mean()
    assert F.cross_entropy(z, y).item() == pytest.approx(written, rel=1e-4, abs=1e-6)
    tested = logits(h, m, counts=counts, la=LocalAdaptation(softmax="owned"), phase="eval")
    assert torch.equal(tested[:, 1], torch.zeros(6))


@pytest.mark.parametrize(("quantity", "q"), [("exp", np.exp), ("sqrt", np.sqrt)])
def test_quantities_have_mean_one_over_the_federation(quantity, q):
    """Φ_kc = Q(x_kc)/norm_c with Σ_k p_k Φ_kc = 1 (table 6); the norms come from the server."""
    with opened({"la": LocalAdaptation(quantity=quantity, softmax="all")}) as engine:
        counts = array(engine.algorithm.facts.counts)
        (job,) = jobs_of(engine, [0])
    norms = job.downlink["la.norms"]
    x = counts / counts.sum(1, keepdims=True)
    p = counts.sum(1) / counts.sum()
    np.testing.assert_allclose(array(norms["value"]), (p[:, None] * q(x)).sum(0), rtol=1e-5)
    ones = torch.ones(1, CLASSES)
    phi = []
    for k, row in enumerate(counts):
        turn = step(ones, torch.zeros(1, dtype=torch.int64), counts=row.tolist(), slots={"la": {"norms": norms}})
        phi.append(array(LocalAdaptation(quantity=quantity, softmax="all").logits(ones, turn.for_component("la")))[0])
        np.testing.assert_allclose(phi[-1], q(x[k]) / array(norms["value"]), rtol=1e-5)
    np.testing.assert_allclose((p[:, None] * np.array(phi)).sum(0), 1, rtol=1e-5)


def test_identity_shares_nothing_and_averages_to_one_when_classes_are_balanced():
    assert LocalAdaptation().slots() == ()
    table = [[6, 0, 2, 2], [0, 6, 3, 1], [1, 1, 2, 4]]
    p = np.sum(table, 1) / np.sum(table)
    ones, y = torch.ones(1, 4), torch.zeros(1, dtype=torch.int64)
    phi = [array(ALL.logits(ones, step(ones, y, counts=row)))[0] for row in table]
    np.testing.assert_allclose((p[:, None] * np.array(phi)).sum(0), 4 * np.sum(table, 0) / np.sum(table), rtol=1e-6)


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("components", [GELA, {"etf": GELA["etf"]}], ids=["fedgela", "fedge"])
def test_the_classifier_never_moves(components):
    """Not under momentum and weight decay either: it is out of the optimizer."""
    recorder = Recorder()
    sgd = Sgd(lr=0.1, momentum=0.9, weight_decay=0.1)
    with opened({**components, "r": recorder}, optimizer=sgd, norm=True) as engine:
        round_of(engine)
        state = round_of(engine)
    initial = engine.algorithm.facts.initial
    for local in recorder.rounds:
        assert torch.equal(local.ends["local"]["classifier.weight"], initial["classifier.weight"])
        assert not torch.equal(local.ends["local"]["features.1.weight"], initial["features.1.weight"])
    assert torch.equal(state.model["classifier.weight"], initial["classifier.weight"])


def test_all_phi_one_is_fedge(monkeypatch):
    every_class = {**GELA, "la": ALL}
    adapted = play(every_class)
    monkeypatch.setattr(LocalAdaptation, "_phi", lambda self, share, step: torch.ones_like(share))
    ours, plain = play(every_class), play({"etf": GELA["etf"]})
    assert ours.digests() == plain.digests()
    assert [r["aggregation"] for r in ours.records] == [r["aggregation"] for r in plain.records]
    assert [r["personalization"] for r in ours.records] == [r["personalization"] for r in plain.records]
    assert adapted.digests() != plain.digests()


def test_balanced_counts_have_phi_one():
    z, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    assert torch.equal(LocalAdaptation().logits(z, step(z, y, counts=[5, 5, 5, 5])), z)


def test_server_and_clients_are_tested_with_their_own_head():
    """GA: {θ, M}; PA: {θ_k after training, Φ_k M}."""
    recorder = Recorder()
    with opened({**GELA, "r": recorder}, fraction=1.0) as engine:
        state = round_of(engine)
        record = engine.records[-1]
        recorder.rounds.clear()
        result = work(engine, 1)
        data = engine.executor._worker.data
    net = tiny_net()

    def unit_features(weights, x):
        load(net, {n: v for n, v in weights.items() if not n.startswith("beside")})
        return F.normalize(F.linear(net.features(x), *(v for n, v in weights.items() if n.startswith("beside"))))

    unit = unit_features(state.model, data.test.x)
    right = ((unit @ frame_of(engine).T).argmax(1) == data.test.y).float().mean().item()
    assert record["aggregation"]["accuracy"] == pytest.approx(right)
    own = data.own_test(1)
    phi = CLASSES * data.info(1).share
    z = 10 * phi * (unit_features(recorder.rounds[0].last, own.x) @ frame_of(engine).T)
    assert sum(result.after.correct) == int((z.argmax(1) == own.y).sum())
    assert result.after.loss == pytest.approx(F.cross_entropy(z, own.y, reduction="sum").item(), rel=1e-4)


def test_la_alone_trains_and_averages_the_classifier_unscaled():
    """W's gradient carries Φ; what is sent and averaged is W itself; the server's test is plain."""
    h = torch.randn(5, 3, dtype=torch.float64)
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    y, counts = torch.tensor([0, 1, 0, 0, 1]), [3, 2, 0, 0]
    z = ALL.logits(h @ w.T, step(h, y, counts=counts))
    (given,) = torch.autograd.grad(F.cross_entropy(z, y), w)
    phi = 4 * np.float32([0.6, 0.4, 0, 0]).astype(float)
    e = np.exp(array(h @ w.T) * phi)
    residual = e / e.sum(1, keepdims=True) - np.eye(4)[y.numpy()]
    np.testing.assert_allclose(array(given), phi[:, None] * (residual.T @ array(h)) / 5, rtol=1e-6, atol=1e-9)
    recorder = Recorder()
    with opened({"la": LocalAdaptation(), "r": recorder}) as engine:
        model = round_of(engine).model
        score = engine.test_server()
        data = engine.executor._worker.data
    sizes = np.array([r.info.n for r in recorder.rounds], dtype=float)
    heads = np.stack([array(r.ends["local"]["classifier.weight"]) for r in recorder.rounds])
    mean = (sizes[:, None, None] * heads).sum(0) / sizes.sum()
    np.testing.assert_allclose(array(model["classifier.weight"]), mean, rtol=1e-4, atol=1e-6)
    net = tiny_net()
    load(net, model)
    assert sum(score.correct) == int((net(data.test.x).argmax(1) == data.test.y).sum())


# ---------------------------------------------------------------- with others
@pytest.mark.parametrize("structure", [GELA, {"la": LocalAdaptation()}], ids=["fedgela", "fedla"])
def test_a_teacher_answers_through_the_same_head(structure):
    """Before the first step the received weights are the student's own: their logits must be too."""
    differences = []

    class Looking(Recorder):
        def _look(self, step):
            if step.index == 0:
                before = step.frame.key
                differences.append(float((step.forward(step.received)[1] - step.z.detach()).abs().max()))
                assert step.frame.key == before

    with opened({**structure, "r": Looking(during=("local",))}) as engine:
        work(engine, 1)
    assert differences
    assert max(differences) < 1e-5


@pytest.mark.parametrize("softmax", ["all", "owned"])
@pytest.mark.parametrize("order", [1, -1])
def test_fedgela_with_a_private_model(softmax, order):
    hpm = InheritedPrivateModel(weight=0.5)
    parts = {**GELA, "la": LocalAdaptation(softmax=softmax), "hpm": hpm}
    engine = play(dict(list(parts.items())[::order]), fraction=1.0)
    assert [p.train for p in engine.algorithm.phases] == ["body", "body"]
    assert np.isfinite(engine.records[-1]["terms"]["personal/hpm"])


def test_what_cannot_be_combined_is_refused():
    from fedexp.algos.alternate import Alternate
    from fedexp.algos.fedrema import RelativityHeads

    with pytest.raises(PlanError, match=r"\['etf', 'heads'\] each put their own classifier"):
        trial_after({"etf": EquiangularHead(), "heads": RelativityHeads()}, rounds=0)
    for parts in (("etf", "alternate"), ("alternate", "etf")):
        made = {"etf": EquiangularHead(), "alternate": Alternate()}
        with pytest.raises(PlanError, match=r"trains only the classifier, which component 'etf' replaces"):
            trial_after({k: made[k] for k in parts}, rounds=0)


def test_a_bias_that_is_stretched_is_said():
    """Of a trained classifier; beside a frame the network's own classifier is not used."""

    def biased(*, norm):
        net = tiny_net(norm=norm)
        net.classifier = torch.nn.Linear(8, 4)
        return net

    def said(components):
        algorithm = trial_after(components, rounds=0, net=biased).algorithm
        return algorithm.components["la"].note(algorithm.facts)

    assert "stretched with them; model.bias=false" in said({"la": LocalAdaptation()})
    assert said(GELA) is None


def test_from_its_files(tmp_path):
    parts = tiny("algo=fedgela").algorithm.components
    assert list(parts) == ["etf", "la"]
    assert parts["la"] == LocalAdaptation()  # the file and the class agree
    assert parts["la"].softmax == "owned"  # eq. 5
    engine = played(tmp_path, "algo=fedgela", "algo.etf.energy=25", "partition=classes", "evaluate=fedgela")
    assert {"aggregation", "personalization"} <= set(engine.records[-1])
    assert engine.algorithm.personal  # PA is read off while training, not after fine-tuning
    assert 0 <= engine.protocol.conclude(engine.measurement)["personalization"]["PA"] <= 1
