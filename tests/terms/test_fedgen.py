"""FedGen: the generator's training and a client's round written out, and what is sent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.algos.fedgela import EquiangularHead
from fedexp.algos.fedgen import FeatureGenerator, _sameness
from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import load, tensors
from fedexp.client.optim import Sgd
from fedexp.core.seeding import torch_rng
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, play, tiny_net, trial_after
from tests.helpers import advanced, array, batches_of, jobs_of, opened, round_of, work

SMALL = {"noise": 3, "hidden": 6, "batch_size": 7, "steps": 4, "lr": 0.01, "samples": 5}


def generator_of(tree):
    net = nn.Sequential(nn.Linear(3 + CLASSES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 8))
    net.load_state_dict(tree)
    return net


def generated(net, y, rng):
    noise = torch.randn(len(y), 3, generator=rng)
    return noise, net(torch.cat([noise, torch.eye(CLASSES)[y]], 1))


def diversity(noise, h):
    pairs = [
        float(((a - b) ** 2).mean()) * (f - g).abs().mean()
        for a, f in zip(noise, h, strict=True) for b, g in zip(noise, h, strict=True)
    ]  # fmt: skip
    return torch.exp(-torch.stack(pairs).mean())


@pytest.mark.parametrize("teacher", ["logits", "losses"])
def test_the_generators_training_written_out(teacher):
    gen = {"gen": FeatureGenerator(**SMALL, teacher=teacher, diversity=0.5)}
    with opened(gen, fraction=1.0) as engine:
        before = engine.progress.state.slots["gen.generator"]
        uplinks = {c: work(engine, c).uplink for c in (0, 1, 2)}
        after = advanced(gen, uplinks, engine=engine)
        counts = engine.algorithm.facts.counts[:3]
    heads = [u["model"]["classifier.weight"] for u in uplinks.values()]
    net, rng = generator_of(before), torch_rng(0, "gen", "features", 0)
    adam = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=1e-2)
    for _ in range(4):
        y = torch.multinomial(counts.sum(0), 7, replacement=True, generator=rng)
        noise, h = generated(net, y, rng)
        if teacher == "logits":
            loss = F.cross_entropy(sum(h @ w.T for w in heads) / 3, y)
        else:
            loss = sum(
                counts[k, c] / counts[:, c].sum() * F.cross_entropy(h[i] @ w.T, c)
                for i, c in enumerate(y) for k, w in enumerate(heads)
            ) / 7  # fmt: skip
        adam.zero_grad()
        (loss + 0.5 * diversity(noise, h)).backward()
        adam.step()
    for n, t in net.state_dict().items():
        if n not in ("0.bias", "1.running_mean"):  # a bias before batch norm: Adam makes steps of rounding errors
            np.testing.assert_allclose(array(after.state.slots["gen.generator"][n]), array(t), rtol=2e-3, atol=1e-4)
    assert torch.equal(after.state.slots["gen.labels"]["value"], counts.sum(0))
    assert after.numbers["gen.loss"] == pytest.approx(loss.item(), rel=1e-3)


@pytest.mark.parametrize("settings", [{}, {"weight": 3.0, "latent": 2.0, "decay": 0.5}, {"weight": 0.0, "latent": 1.0}])
def test_a_client_written_out(settings):
    method = FeatureGenerator(**SMALL, **settings)
    with opened({"gen": method}, fraction=1.0, optimizer=Sgd(lr=0.1, momentum=0.9, weight_decay=0.0)) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    generator = generator_of(job.downlink["gen.generator"]).eval().requires_grad_(requires_grad=False)
    labels = job.downlink["gen.labels"]["value"]
    net = tiny_net()
    load(net, job.downlink["model"])
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(batches):
        rng = torch_rng(0, "gen", "features", 1, 1, "local", index)
        z = net(x)
        loss = F.cross_entropy(z, y)
        if method.weight:
            drawn = torch.multinomial(labels, 5, replacement=True, generator=rng)
            made = net.classifier(generated(generator, drawn, rng)[1])
            loss = loss + method.weight * method.decay * F.cross_entropy(made, drawn)  # to the power of the round, 1
        if method.latent:
            p = F.softmax(net.classifier(generated(generator, y, rng)[1]), 1).detach()
            divergence = (p * (p.log() - F.log_softmax(z, 1))).sum(1).mean()
            loss = loss + method.latent * method.decay * divergence
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    for n, w in tensors(net).items():
        np.testing.assert_allclose(array(result.uplink["model"][n]), array(w), rtol=1e-3, atol=1e-5)


def test_more_steps_make_features_that_the_clients_tell_apart():
    losses = []
    for steps in (1, 200):
        gen = {"gen": FeatureGenerator(**{**SMALL, "steps": steps}, diversity=0.0)}
        with opened(gen, fraction=1.0) as engine:
            uplinks = {c: work(engine, c).uplink for c in (0, 1, 2)}
            losses.append(advanced(gen, uplinks, engine=engine).numbers["gen.loss"])
    assert losses[1] < 0.5 * losses[0]


def test_features_that_are_all_alike_have_no_diversity():
    noise, h = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.ones(5, 2)
    assert _sameness(noise, h) == 1
    assert _sameness(noise, noise) < 1


def test_the_first_round_is_fedavg_and_the_second_is_not():
    for rounds, same in ((1, True), (2, False)):
        ours, plain = (play(c, rounds=rounds).progress.state.model for c in ({"gen": FeatureGenerator(**SMALL)}, {}))
        assert (digest({"": ours}) == digest({"": plain})) is same


def test_what_is_sent():
    """The generator and C numbers down, C numbers up, beside the model."""
    ours, plain = play({"gen": FeatureGenerator(**SMALL)}), play({})
    calls = ours.sampler.size * ours.rounds
    parameters = (3 + CLASSES) * 6 + 6 + 4 * 6 + 6 * 8 + 8  # with the running statistics
    assert ours.ledger.up - plain.ledger.up == calls * 4 * CLASSES
    assert ours.ledger.down - plain.ledger.down == calls * (4 * (parameters + CLASSES) + 8)  # and batch norm's counter


def test_refusals():
    with pytest.raises(PlanError, match=r"algo\.gen\.batch_size must be at least 2"):
        trial_after({"gen": FeatureGenerator(batch_size=1)}, rounds=0)
    with pytest.raises(PlanError, match=r"'gen' runs the network's own classifier"):
        trial_after({"etf": EquiangularHead(during=("*",)), "gen": FeatureGenerator(**SMALL)}, rounds=0)


def test_it_composes():
    gen = {"gen": FeatureGenerator(**SMALL)}
    alone = play(gen, rounds=2).progress.state.model
    for both in ({"rs": RestrictedSoftmax(alpha=0.5), **gen}, {**gen, "scaffold": Scaffold()}):
        made = play(both, rounds=2).progress.state.model
        assert digest({"": made}) != digest({"": alone})
        assert all(t.isfinite().all() for t in made.values())
