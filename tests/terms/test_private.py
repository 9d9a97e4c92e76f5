"""Private parts (FedPer, FedRep, LG-FedAvg, FedBN, local training): a client's round written out in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.private import PrivatePart
from fedexp.algos.scaffold import Scaffold
from fedexp.client.network import layout_of, load, tensors
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.state import digest
from fedexp.errors import PlanError
from fedexp.server.aggregate import is_finite
from fedexp.testing import CLIENTS, play, tiny_net, trial_after
from tests.helpers import batches_of, jobs_of, opened, round_of, work

PARTS = {"fedper": "classifier", "lg_fedavg": "features", "fedbn": "norm", "local": "all"}


def components_of(algo):
    return {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}


def names_of(part):
    return set(layout_of(tiny_net(norm=True)).parts[part])


def train(net, batches, part="all", lr=0.1):
    """SGD as a trial has it, on a part of the network; a part without any trained parameter is in evaluation mode."""
    trained = {n: p for n, p in net.named_parameters() if n in names_of(part)}
    net.train()
    if part == "classifier":
        net.features.eval()
    sgd = torch.optim.SGD(trained.values(), lr, momentum=0.9, weight_decay=1e-3)
    for x, y in batches:
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()


def assert_close(given, expected):
    assert given.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(given[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", PARTS)
def test_a_round_written_out(algo):
    """From the received rest and the kept part; the rest is sent, the part is kept."""
    part = names_of(PARTS[algo])
    with opened(components_of(algo), fraction=1.0, norm=True) as engine:
        round_of(engine)
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        batches = batches_of(engine, job, "local")
        result = work(engine, 1)
    net = tiny_net(norm=True)
    load(net, {**job.downlink.get("model", {}), **job.private["private.part"]})
    train(net, batches)
    end = tensors(net)
    assert_close(result.uplink.get("model", {}), {n: v for n, v in end.items() if n not in part})
    assert_close(result.private["private.part"], {n: v for n, v in end.items() if n in part})


@pytest.mark.parametrize("algo", PARTS)
def test_the_part_is_each_clients_own_and_the_rest_is_the_mean(algo):
    part = names_of(PARTS[algo])
    with opened(components_of(algo), fraction=1.0, norm=True, weighting="uniform") as engine:
        sent = [work(engine, c).uplink.get("model", {}) for c in range(CLIENTS)]
        state = round_of(engine)
        kept = [engine.progress.store.get(c)["private.part"] for c in range(CLIENTS)]
    for name, value in state.model.items():
        if name in part:
            assert torch.equal(value, engine.algorithm.facts.initial[name])
        elif value.is_floating_point():
            torch.testing.assert_close(value, torch.stack([tree[name] for tree in sent]).mean(0))
    assert all(tree.keys() == part for tree in kept)
    assert len({digest({"": tree}) for tree in kept}) == CLIENTS


def test_local_training_goes_on_where_it_stopped_whatever_others_do():
    with opened(components_of("local"), fraction=1.0) as engine:
        net = tiny_net()
        for _ in range(3):
            (job,) = jobs_of(engine, [1])
            train(net, batches_of(engine, job, "local"))
            round_of(engine)
        kept = engine.progress.store.get(1)["private.part"]
    assert_close(kept, tensors(net))
    assert engine.ledger.up == engine.ledger.down == 0


def test_fedrep_trains_the_classifier_for_ten_epochs_and_then_the_features_for_one():
    with opened(components_of("fedrep"), fraction=1.0, norm=True) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [1])
        head, body = (batches_of(engine, job, phase) for phase in ("head", "local"))
        result = work(engine, 1)
    assert len(head) == 10 * len(body)
    net = tiny_net(norm=True)
    load(net, {**job.downlink["model"], **job.private["private.part"]})
    train(net, head, "classifier")
    train(net, body, "features")
    end = tensors(net)
    assert_close(result.private["private.part"], {n: v for n, v in end.items() if n in names_of("classifier")})
    assert_close(result.uplink["model"], {n: v for n, v in end.items() if n in names_of("features")})


def test_before_training_a_client_is_tested_with_its_own_part():
    with opened(components_of("fedper"), fraction=1.0) as engine:
        round_of(engine)
        (job,) = jobs_of(engine, [0])
        result = work(engine, 0)
        held = engine.executor._worker.data.own_test(0)
    net = tiny_net()
    load(net, {**job.downlink["model"], **job.private["private.part"]})
    assert result.before.loss == pytest.approx(F.cross_entropy(net(held.x), held.y, reduction="sum").item(), rel=1e-5)


def test_fedbn_without_normalisation_layers_is_fedavg_and_says_so():
    ours, plain = play(components_of("fedbn")), play({})
    assert digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})
    note = PrivatePart(part="norm").note(ours.algorithm.facts)
    assert "no normalisation layers" in note
    assert "algo=fedavg also tests the server's" in note
    assert PrivatePart(part="classifier").note(ours.algorithm.facts) is None
    ours, plain = play(components_of("fedbn"), norm=True), play({}, norm=True)
    assert PrivatePart(part="norm").note(ours.algorithm.facts) is None
    assert digest({"": ours.progress.state.model}) != digest({"": plain.progress.state.model})


@pytest.mark.parametrize("algo", [*PARTS, "fedrep", "fedproto"])
def test_a_server_that_lacks_the_part_is_not_tested(algo):
    records = play(components_of(algo), norm=True).records
    assert not any("aggregation" in record for record in records)
    assert all("personalization" in record for record in records)


def test_parts_can_be_joined_and_must_be_there():
    with opened({"private": PrivatePart(part="classifier+norm")}, norm=True) as engine:
        round_of(engine)
        assert set(engine.algorithm.travelling) == names_of("all") - names_of("classifier") - names_of("norm")
    with pytest.raises(PlanError, match=r"private_part of component 'private' is 'clasifier'.*classifier"):
        trial_after({"private": PrivatePart(part="clasifier")}, rounds=0)
    with pytest.raises(PlanError, match="during must name the one phase"):
        trial_after({"private": PrivatePart(during=("*",))}, rounds=0)


@pytest.mark.parametrize("algo", [*PARTS, "fedrep", "fedbabu", "fedbabu_ft", "fedproto", "fedpac"])
def test_restricted_softmax_and_control_variates_go_with_personal_methods(algo):
    """Controls are those of what travels: their mean is the server's, and a private tensor has none."""
    rs = play({"rs": RestrictedSoftmax(alpha=0.5), **components_of(algo)}, rounds=2, norm=True)
    scaffold = play({**components_of(algo), "scaffold": Scaffold()}, rounds=2, norm=True, fraction=1.0)
    for engine in (rs, scaffold):
        assert is_finite(engine.progress.state.model)
    control = scaffold.progress.state.slots["scaffold.c"]
    assert set(control) == set(scaffold.algorithm.facts.layout.shared)
    own = [scaffold.progress.store.get(c)["scaffold.ck"] for c in range(CLIENTS)]
    for name, value in control.items():
        torch.testing.assert_close(value, torch.stack([tree[name] for tree in own]).mean(0), rtol=1e-4, atol=1e-5)
