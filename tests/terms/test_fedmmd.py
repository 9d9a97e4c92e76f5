"""FedMMD: the discrepancy from the received model's features, written out."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedmmd import FeatureDiscrepancy
from fedexp.client.network import load
from fedexp.core.state import digest
from fedexp.testing import play, tiny_net
from tests.helpers import batches_of, jobs_of, opened, round_of, work
from tests.terms.training import assert_same, train


def discrepancy(x, y):
    """Five Gaussian kernels around the mean squared distance between distinct points, by pairs."""
    points = torch.cat([x, y])
    squared = (points[:, None] - points[None]).square().sum(-1)
    n, b = len(points), len(x)
    base = squared.detach().sum() / (n * (n - 1))
    kernel = sum(torch.exp(-squared / (base * factor)) for factor in (0.25, 0.5, 1, 2, 4))
    return kernel[:b, :b].mean() + kernel[b:, b:].mean() - 2 * kernel[:b, b:].mean()


@pytest.mark.parametrize("norm", [False, True])
def test_a_client_written_out(norm):
    """The received model is frozen and in evaluation mode, whatever the live one does."""
    with opened({"mmd": FeatureDiscrepancy(weight=2.0)}, norm=norm, fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = tiny_net(norm=norm)
    load(net, job.downlink["model"])
    frozen = copy.deepcopy(net).eval().requires_grad_(requires_grad=False)

    def loss(x, y):
        h = net.features(x)
        return F.cross_entropy(net.classifier(h), y) + 2.0 * discrepancy(h, frozen.features(x))

    train(net, batches, loss)
    assert all(len(y) > 1 for _, y in batches)
    assert_same(result.uplink["model"], net)
    assert result.terms["local/mmd"] > 0


def test_the_first_step_has_no_discrepancy():
    uploads = []
    for weight in (0.0, 10.0):
        with opened({"mmd": FeatureDiscrepancy(weight=weight)}, epochs=0.01) as engine:
            uploads.append(work(engine, 1).uplink["model"])
    for n, w in uploads[0].items():
        torch.testing.assert_close(uploads[1][n], w)


def test_without_weight_it_is_fedavg():
    plain = play({}).progress.state.model
    ours = play({"mmd": FeatureDiscrepancy(weight=0.0)}).progress.state.model
    assert digest({"": ours}) == digest({"": plain})
    assert digest({"": play({"mmd": FeatureDiscrepancy()}).progress.state.model}) != digest({"": plain})
