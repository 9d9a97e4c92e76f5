"""FedPAC: statistics as in the public code, the quadratic programme against its conditions, and what a round sends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedexp.algos.fedpac import ClassifierCollaboration, collaboration, smallest_on_simplex, statistics
from fedexp.client.network import load
from fedexp.client.optim import Sgd
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.testing import CLASSES, CLIENTS, play, tiny_net, trial_after
from tests.helpers import array, batches_of, jobs_of, opened, round_of, served, work

ALONE = {"collaborate": ClassifierCollaboration()}


def fedpac():
    return {key: make(node) for key, node in composed(["algo=fedpac"])["algo"].items()}


def by_hand(h, y, n_classes):
    """Class by class, with the trace of the second moments."""
    n = len(y)
    means, variance = np.zeros((n_classes, h.shape[1])), 0.0
    for c in np.unique(y):
        own, share = h[y == c], (y == c).mean()
        mu = own.mean(0)
        means[c] = share * mu
        variance += share * np.trace(own.T @ own / len(own)) - share**2 * (mu * mu).sum()
    return means, variance / n


def test_statistics_written_out():
    rng = torch.Generator().manual_seed(0)
    h, y = torch.randn(11, 3, generator=rng), torch.tensor([0, 1, 1, 3, 0, 0, 1, 3, 3, 3, 0])
    given = statistics([(h[:4], y[:4]), (h[4:], y[4:])], 5)
    means, variance = by_hand(array(h), y.numpy(), 5)
    np.testing.assert_allclose(array(given["means"]), means, rtol=1e-5, atol=1e-6)
    assert given["variance"].item() == pytest.approx(variance, rel=1e-5)
    single = statistics([(h[:1], y[:1])], 5)
    assert single["variance"].item() == pytest.approx(0, abs=1e-6)


# ---------------------------------------------------------------- weights
def drawn(m, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, 12)), rng.uniform(0.01, 3, m)


def cost(a, i, means, variances):
    """Variance plus squared bias."""
    return (a**2 * variances).sum() + ((means[i] - a @ means) ** 2).sum()


@pytest.mark.parametrize(("m", "seed"), [(2, 0), (3, 1), (5, 2), (9, 3), (20, 4)])
def test_weights_are_the_best_on_the_simplex(m, seed):
    """By the conditions of optimality: the slope is the same for all weights above zero, and no smaller elsewhere."""
    means, variances = drawn(m, seed)
    weights = collaboration(means, variances, 0.0)
    for i, a in enumerate(weights):
        assert a.min() >= 0
        assert a.sum() == pytest.approx(1)
        slope = 2 * (a * variances + (a @ means - means[i]) @ means.T)
        level = slope[a > 1e-9].min()
        np.testing.assert_allclose(slope[a > 1e-9], level, atol=1e-7)
        assert (slope >= level - 1e-7).all()
        others = np.vstack([np.eye(m), np.full(m, 1 / m), np.random.default_rng(seed).dirichlet(np.ones(m), 200)])
        assert all(cost(a, i, means, variances) <= cost(b, i, means, variances) + 1e-12 for b in others)


def test_two_clients_in_closed_form():
    """a_2 = (V_1) / (V_1 + V_2 + ‖H_1 - H_2‖²) for the first client."""
    means, variances = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([3.0, 0.5])
    other = 3.0 / (3.0 + 0.5 + 5.0)
    np.testing.assert_allclose(collaboration(means, variances, 0.0)[0], [1 - other, other], rtol=1e-9)


def test_alike_means_uniform_and_far_away_means_alone():
    means = np.tile(np.arange(6.0), (4, 1))
    np.testing.assert_allclose(collaboration(means, np.full(4, 0.7), 0.001), np.full((4, 4), 0.25), atol=1e-9)
    means[2] += 1e3
    np.testing.assert_allclose(collaboration(means, np.full(4, 1e-6), 0.001)[2], np.eye(4)[2], atol=1e-9)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_scale_of_features_does_not_matter(scale):
    means, variances = drawn(6, 5)
    np.testing.assert_allclose(
        collaboration(scale * means, scale**2 * variances, 0.001), collaboration(means, variances, 0.001), atol=1e-6
    )


def test_small_weights_are_dropped_and_the_rest_sums_to_one():
    means, variances = drawn(8, 6)
    all_of_them, few = (collaboration(means, variances, threshold) for threshold in (0.0, 0.1))
    kept = np.where(all_of_them >= 0.1, all_of_them, 0)
    np.testing.assert_allclose(few, kept / kept.sum(1, keepdims=True))
    assert ((few == 0) & (all_of_them > 0)).any()
    largest = collaboration(np.zeros((4, 2)), np.array([1.0, 1.0, 1.0, 1.0]), 0.9)
    np.testing.assert_allclose(largest.sum(1), 1)


def test_a_form_of_zeros_has_weights_too():
    np.testing.assert_allclose(smallest_on_simplex(np.zeros((3, 3))).sum(), 1)


# ---------------------------------------------------------------- rounds
def test_the_server_mixes_classifiers_by_client_whatever_the_order_of_uploads():
    engine = trial_after(ALONE, rounds=0)
    model = {k: v for k, v in engine.progress.state.model.items() if k in engine.algorithm.travelling}
    means, variances = drawn(3, 7)
    rng = torch.Generator().manual_seed(1)
    heads = torch.randn(3, CLASSES, 8, generator=rng)
    table = np.zeros((3, CLASSES, 8))
    table[:, :3, :4] = means.reshape(3, 3, 4)

    def upload(k):
        found = {
            "means": torch.tensor(table[k], dtype=torch.float32),
            "variance": torch.tensor(variances[k], dtype=torch.float32),
        }
        head = {"classifier.weight": heads[k]}
        return {"model": model, "collaborate.head": head, "collaborate.statistics": found}

    uploads = {client: upload(k) for k, client in enumerate((0, 2, 4))}
    state = served(ALONE, uploads, engine=engine)
    weights = collaboration(means, variances, 0.001)
    for k, client in enumerate((0, 2, 4)):
        mixed = array(state.mailboxes["collaborate.head"][client]["classifier.weight"])
        np.testing.assert_allclose(mixed, np.tensordot(weights[k], array(heads), 1), rtol=1e-4, atol=1e-5)
    backwards = served(ALONE, dict(reversed(uploads.items())), engine=engine)
    assert digest(state.mailboxes["collaborate.head"]) == digest(backwards.mailboxes["collaborate.head"])
    assert set(state.mailboxes["collaborate.head"]) == {0, 2, 4}


def test_statistics_are_of_the_received_features_and_the_classifier_is_the_trained_one():
    with opened(fedpac(), fraction=1.0, norm=True) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [0])
        result = work(engine, 0)
        own = engine.executor._worker.data.own_train(0)
    net = tiny_net(norm=True)
    load(net, {**job.downlink["model"], **job.downlink["collaborate.head"]})
    net.eval()
    with torch.no_grad():
        means, variance = by_hand(array(net.features(own.x)), own.y.numpy(), CLASSES)
    found = result.uplink["collaborate.statistics"]
    np.testing.assert_allclose(array(found["means"]), means, rtol=1e-4, atol=1e-5)
    assert found["variance"].item() == pytest.approx(variance, rel=1e-4)
    sent, received = (m["collaborate.head"]["classifier.weight"] for m in (result.uplink, job.downlink))
    assert not torch.equal(sent, received)


def test_a_client_starts_from_its_own_classifier_and_trains_it_first():
    """One epoch of the classifier with frozen features, at a rate of its own; then the features."""
    with opened(fedpac(), fraction=1.0, optimizer=Sgd(lr=0.02, momentum=0.9, weight_decay=1e-3)) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        head, body = (batches_of(engine, job, phase) for phase in ("head", "local"))
        result = work(engine, 1)
    assert len(body) == 2 * len(head)
    net = tiny_net()
    load(net, {**job.downlink["model"], **job.downlink["collaborate.head"]})
    sgd = torch.optim.SGD(net.classifier.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    for x, y in head:
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        sgd.step()
    torch.testing.assert_close(
        result.uplink["collaborate.head"]["classifier.weight"], net.classifier.weight.detach(), rtol=1e-4, atol=1e-5
    )


def test_bytes_are_the_model_and_twice_the_class_means():
    """Up: features, classifier, H and V, sums and counts. Down: features, classifier, prototypes, which there are."""
    engine = play(fedpac(), fraction=1.0, rounds=1)
    network, table = 16 * 8 + 8 + 8 * 4, CLASSES * 8
    assert engine.ledger.up == CLIENTS * 4 * (network + table + 1 + table + CLASSES)
    assert engine.ledger.down == CLIENTS * 4 * (network + table + CLASSES)


def test_the_weight_of_the_own_classifier_is_recorded():
    engine = play(fedpac(), rounds=2)
    own = [record["numbers"]["collaborate.own"] for record in engine.records]
    assert [len(values) for values in own] == [3, 3]
    assert all(0 <= value <= 1 for values in own for value in values)


def test_one_phase_sends_the_classifier():
    with pytest.raises(PlanError, match="during must name the one phase"):
        trial_after({"collaborate": ClassifierCollaboration(during=("*",))}, rounds=0)
