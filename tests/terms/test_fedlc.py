"""FedLC: margins by class counts, both denominators, and a test without margins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedlc import LogitCalibration
from fedexp.client.network import load
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import array, batches_of, jobs_of, opened, round_of, step, work, worker_of
from tests.terms.training import assert_same, train

COUNTS = [16, 81, 1, 4]


def a_step(counts=COUNTS):
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(6, 4, generator=rng, requires_grad=True)
    return step(z, torch.tensor([0, 1, 2, 3, 1, 0]), counts=counts), z


def test_margins_written_out():
    """z_c - tau · n_c^(-1/4): the fourth roots of 16, 81 and 1 are 2, 3 and 1."""
    s, z = a_step()
    margins = 0.6 * np.array([1 / 2, 1 / 3, 1, 1 / np.sqrt(2)])
    np.testing.assert_allclose(array(LogitCalibration(tau=0.6).logits(z, s)), array(z) - margins, rtol=1e-5, atol=1e-6)


def test_the_printed_loss_leaves_the_own_class_out_of_the_denominator():
    """-log(e^{z_y} / Σ_{c ≠ y} e^{z_c}), of calibrated logits, averaged over the batch."""
    s, z = a_step()
    lc = LogitCalibration(tau=0.6, denominator="others")
    s.z = lc.logits(z, s)
    given = F.cross_entropy(s.z, s.y) + lc.loss(s)
    rows = array(s.z)
    printed = [np.log(np.exp(np.delete(row, c)).sum()) - row[c] for row, c in zip(rows, s.y.numpy(), strict=True)]
    assert given.item() == pytest.approx(np.mean(printed), rel=1e-5)
    assert LogitCalibration(tau=0.6).loss(s) is None


def test_a_missing_class_is_out_of_the_softmax():
    s, z = a_step(counts=[16, 81, 1, 0])
    calibrated = LogitCalibration(tau=1.0).logits(z, s)
    assert array(calibrated - z)[0, 3] == pytest.approx(-100, rel=1e-5)
    owned = s.y != 3
    (gradient,) = torch.autograd.grad(F.cross_entropy(calibrated[owned], s.y[owned]), z)
    assert gradient[:, 3].abs().max() < 1e-30
    assert gradient[owned][:, :3].abs().min() > 1e-4


def test_a_rare_class_needs_a_larger_margin():
    """With equal logits the rare class's sample has the larger loss, hence the larger gradient."""
    s, _ = a_step()
    losses = F.cross_entropy(LogitCalibration().logits(torch.zeros(4, 4), s), torch.arange(4), reduction="none")
    assert losses.argsort().tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_a_client_written_out_and_tested_with_plain_logits(denominator):
    with opened({"lc": LogitCalibration(tau=0.5, denominator=denominator)}, norm=True, fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
        own, test = worker_of(engine).data.own_train(1), worker_of(engine).data.own_test(1)
    net = tiny_net(norm=True)
    load(net, job.downlink["model"])
    counts = torch.bincount(own.y, minlength=4).clamp(min=1e-8)

    def loss(x, y):
        z = net(x) - 0.5 * counts.pow(-0.25)
        exponentials = z.double().exp()
        counted = exponentials if denominator == "all" else exponentials.scatter(1, y[:, None], 0.0)
        return -torch.log(exponentials.gather(1, y[:, None])[:, 0] / counted.sum(1)).mean()

    train(net, batches, loss)
    assert_same(result.uplink["model"], net)
    net.eval()
    assert result.after.loss == pytest.approx(F.cross_entropy(net(test.x), test.y, reduction="sum").item(), rel=1e-4)


def test_without_margins_it_is_fedavg():
    plain = digest({"": play({}).progress.state.model})
    assert digest({"": play({"lc": LogitCalibration(tau=0.0)}).progress.state.model}) == plain
    assert digest({"": play({"lc": LogitCalibration()}).progress.state.model}) != plain
