"""FedDF: the server's step written out, its teachers, and its running statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.feddf import EnsembleDistillation
from fedexp.algos.fedgela import EquiangularHead
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.algos.server_optim import ServerMomentum
from fedexp.client.network import load, tensors
from fedexp.config.compose import composed
from fedexp.core.seeding import torch_rng
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import play, tiny_net, tiny_public, trial_after
from tests.helpers import advanced, array, opened, round_of, work


def net_of(weights):
    net = tiny_net(norm=True)
    load(net, weights)
    return net.eval()


def taught(models, x, teacher):
    z = torch.stack([net_of(m)(x) for m in models]).detach()
    return F.softmax(z.mean(0), 1) if teacher == "logits" else F.softmax(z, 2).mean(0)


def test_probabilities_of_teachers_that_are_sure_have_a_finite_loss():
    """All of them round the probability of a class to zero, of which there is no logarithm."""
    df = {"df": EnsembleDistillation(steps=3, teacher="probabilities")}
    with opened(df, fraction=1.0) as engine:
        sent = {c: work(engine, c).uplink["model"] for c in (0, 1)}
        sure = {
            c: {"model": {n: 60 * w if n == "classifier.weight" else w for n, w in m.items()}} for c, m in sent.items()
        }
        assert not taught([m["model"] for m in sure.values()], tiny_public().x, "probabilities").all()
        after = advanced(df, sure, engine=engine)
    assert np.isfinite(after.numbers["df.loss"]).all()


@pytest.mark.parametrize("teacher", ["logits", "probabilities"])
def test_the_servers_step_written_out(teacher):
    """KL(p ‖ q) = Σ p (log p - log q), Adam by hand with a cosine, in training mode."""
    steps, lr, x = 7, 0.01, tiny_public().x
    df = {"df": EnsembleDistillation(steps=steps, lr=lr, batch_size=5, teacher=teacher)}
    with opened(df, norm=True, fraction=1.0) as engine:
        uplinks = {c: work(engine, c).uplink for c in (0, 1, 2)}
        after = advanced(df, uplinks, engine=engine)
        counts = engine.algorithm.facts.counts[:3].sum(1)
    models = [u["model"] for u in uplinks.values()]
    shares = counts / counts.sum()
    mean = {n: sum(s * m[n] for s, m in zip(shares, models, strict=True)) for n in models[0]}
    target = taught(models, x, teacher)
    student = net_of(mean).train()
    load(student, {n: models[0][n] for n in mean if n.endswith("tracked")})
    rng = torch_rng(0, "df", "batches", 0)
    rows = torch.cat([torch.randperm(len(x), generator=rng) for _ in range(5)])
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in student.named_parameters()}
    losses = []
    for t in range(steps):
        batch = rows[5 * t : 5 * t + 5]
        q = F.softmax(student(x[batch]), 1)
        loss = (target[batch] * (target[batch].log() - q.log())).sum() / 5
        losses.append(loss.item())
        student.zero_grad()
        loss.backward()
        rate = lr * 0.5 * (1 + np.cos(np.pi * t / steps))
        for n, p in student.named_parameters():
            m, v = moments[n]
            moments[n] = m, v = 0.9 * m + 0.1 * p.grad, 0.999 * v + 0.001 * p.grad**2
            p.data -= rate * (m / (1 - 0.9 ** (t + 1))) / ((v / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
    # a bias before batch norm has no gradient but rounding errors, of which Adam makes steps; the running mean has it
    free = {"features.1.bias", "features.2.running_mean"}
    for n in tensors(student).keys() - free:
        np.testing.assert_allclose(array(after.state.model[n]), array(tensors(student)[n]), rtol=2e-3, atol=1e-4)
    assert after.numbers["df.loss"] == pytest.approx([losses[0], losses[-1]], rel=1e-3)


def test_it_comes_nearer_to_the_ensemble():
    x = tiny_public().x
    method = EnsembleDistillation(steps=100, lr=0.01)
    distances = []
    for df in ({"df": method}, {"df": method.neutral()}):
        with opened(df, norm=True, fraction=1.0) as engine:
            uplinks = {c: work(engine, c).uplink for c in (0, 1, 2)}
            model = advanced(df, uplinks, engine=engine).state.model
        target = taught([u["model"] for u in uplinks.values()], x, "logits")
        distances.append(F.kl_div(F.log_softmax(net_of(model)(x), 1), target, reduction="batchmean").item())
    assert distances[0] < 0.5 * distances[1]


def test_one_teacher_that_is_the_student_changes_no_parameter():
    """Without batch norm both answer alike, and KL(p ‖ p) has no gradient."""
    df = {"df": EnsembleDistillation(steps=5)}
    with opened(df, fraction=1.0) as engine:
        uplink = work(engine, 1).uplink
        model = advanced(df, {1: uplink}, engine=engine).state.model
    for n, w in uplink["model"].items():
        np.testing.assert_allclose(array(model[n]), array(w), atol=6e-3)  # Adam's steps, of rounding errors


def test_the_student_begins_where_the_components_before_have_moved_the_mean():
    """Half of the mean step, and then one step of Adam, which moves each weight by its learning rate at most."""
    lr, half = 1e-6, {"avgm": ServerMomentum(lr=0.5, beta=0.0)}
    both = {**half, "df": EnsembleDistillation(steps=1, lr=lr)}
    distilled, begun = (play(components, rounds=1).progress.state.model for components in (both, half))
    for n, w in begun.items():
        np.testing.assert_allclose(array(distilled[n]), array(w), rtol=0, atol=2 * lr)


def test_every_round_has_its_own_order_of_samples():
    with opened({"df": EnsembleDistillation(steps=2, batch_size=3)}, fraction=1.0) as engine:
        first, second = (round_of(engine).model for _ in range(2))
    assert digest({"": first}) != digest({"": second})


def test_the_configuration_gives_the_server_its_samples():
    assert composed(["algo=feddf"])["public"] == 100
    assert composed(["algo=feddf", "public=500"])["public"] == 500


def test_a_replaced_classifier_is_refused_before_the_first_round():
    """The server distils through the network's own."""
    with pytest.raises(PlanError, match=r"'df' runs the network's own classifier .* which component 'etf'"):
        trial_after({"df": EnsembleDistillation(), "etf": EquiangularHead()}, rounds=0)


def test_it_composes():
    df = {"df": EnsembleDistillation(steps=3)}
    for other in ({"rs": RestrictedSoftmax(alpha=0.5)}, {"scaffold": Scaffold()}):
        one, two = (play(c, rounds=2).progress.state.model for c in ({**other, **df}, other))
        assert digest({"": one}) != digest({"": two})
