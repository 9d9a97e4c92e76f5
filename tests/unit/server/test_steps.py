"""Server steps of published methods through the seams, against their formulas; and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedexp.client.network import layout_of, load, tensors
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component
from fedexp.core.seeding import seeded
from fedexp.core.state import Message, Slot, digest, number, snapshot
from fedexp.core.views import Facts
from fedexp.errors import PlanError
from fedexp.execute.processes import ProcessExecutor
from fedexp.models.split import SplitModel
from fedexp.server.network import ServerNetwork
from fedexp.server.update import Advanced, advance, cohort_weights
from fedexp.testing import (
    CLASSES,
    CLIENTS,
    SIDE,
    battery,
    executors_agree,
    play,
    tiny_data,
    tiny_net,
    tiny_public,
    trial_after,
)  # fmt: skip
from tests.helpers import array, folded
from tests.unit.server.methods import Adam, Distil, Dyn, Momentum, Nova

COHORT = (0, 2, 3)
PUBLIC = tiny_public()


def compiled(components: dict[str, Component], net: SplitModel, *, public: int = 8) -> Algorithm:
    facts = Facts(
        seed=0, rounds=4, fraction=0.6, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=tiny_data().counts, initial=snapshot(tensors(net)), public=public,
    )  # fmt: skip
    return Algorithm.compile(components, facts)


def uplinks(algorithm: Algorithm, seed: int = 0, **more: list[float]) -> dict[int, Message]:
    """Random models, as clients might send them, and numbers."""
    messages: dict[int, Message] = {}
    for i, client in enumerate(COHORT):
        rng = torch.Generator().manual_seed(1000 * seed + client)
        model = {
            n: torch.rand(v.shape, generator=rng) + 0.1 if v.is_floating_point() else v + 10 + client
            for n, v in algorithm.facts.initial.items()
        }
        messages[client] = {"model": model, **{k: {"value": torch.tensor(v[i])} for k, v in more.items()}}
    return messages


def after(algorithm, messages, net, state=None, public=None) -> Advanced:
    weights = cohort_weights(algorithm, "samples", COHORT)
    fold = folded(algorithm, weights, messages)
    return advance(algorithm, state or algorithm.fresh_state(), weights, fold, ServerNetwork(net), public=public)


def round_with(update=None, serve=None, slots=(), net=None, public=PUBLIC):
    """A round of a component with these seams."""
    seams = {"slots": lambda self: slots}
    seams |= {"update": lambda self, delta, server: update(delta, server)} if update else {}
    seams |= {"serve": lambda self, server: serve(server)} if serve else {}
    component = dataclass(frozen=True, kw_only=True)(type("Given", (Component,), seams))()
    net = net or tiny_net(norm=True)
    algorithm = compiled({"x": component}, net)
    return after(algorithm, uplinks(algorithm), net, public=public)


# ---------------------------------------------------------------- the chain of updates
@pytest.mark.parametrize("order", [("nova", "momentum"), ("momentum", "nova")])
def test_a_server_optimizer_sees_the_step_that_reaches_its_place(order):
    net, parts = tiny_net(), {"nova": Nova(), "momentum": Momentum(beta=0.7)}
    algorithm = compiled({key: parts[key] for key in order}, net)
    weights = cohort_weights(algorithm, "samples", COHORT)
    state = algorithm.fresh_state()
    name = "features.1.weight"
    w, v = array(state.model[name]), 0.0
    for t in range(3):
        taus = [1.0 + t, 4.0, 2.5]
        messages = uplinks(algorithm, t, **{"nova.tau": taus})
        step = sum(weights[c] * array(messages[c]["model"][name]) for c in COHORT) - w
        effective = sum(weights[c] * tau for c, tau in zip(COHORT, taus, strict=True))
        if order[0] == "nova":
            v = 0.7 * v + effective * step
            w = w + v
        else:
            v = 0.7 * v + step
            w = w + effective * v
        state = after(algorithm, messages, net, state).state
        np.testing.assert_allclose(state.model[name], w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.slots["momentum.v"][name], v, rtol=1e-4, atol=1e-5)


def test_serve_sees_the_plain_step_and_update_the_chains():
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Doubles(Component):
        def serve(self, server):
            seen.append(("serve", server.delta["features.1.weight"].clone()))

        def update(self, delta, server):
            assert server.delta is delta
            seen.append(("update", delta["features.1.weight"].clone()))
            return {n: 2 * d for n, d in delta.items()}

    net = tiny_net()
    algorithm = compiled({"a": Doubles(), "b": Doubles()}, net)
    after(algorithm, uplinks(algorithm), net)
    plain = seen[0][1]
    assert [seam for seam, _ in seen] == ["serve", "serve", "update", "update"]
    for (_, step), factor in zip(seen, (1, 1, 1, 2), strict=True):
        assert torch.equal(step, factor * plain)


def test_server_adam_is_torchs_and_leaves_statistics_to_the_mean():
    net = tiny_net(norm=True)
    algorithm = compiled({"adam": Adam()}, net)
    state, names = algorithm.fresh_state(), algorithm.facts.layout.shared
    twin = {n: state.model[n].clone() for n in names}
    adam = torch.optim.Adam(twin.values(), lr=0.1, eps=1e-3)
    weights = cohort_weights(algorithm, "samples", COHORT)
    for t in range(3):
        messages = uplinks(algorithm, t)
        mean = {n: sum(weights[c] * messages[c]["model"][n] for c in COHORT) for n in messages[0]["model"]}
        for n in names:
            twin[n].grad = twin[n] - mean[n]
        adam.step()
        state = after(algorithm, messages, net, state).state
        for n in names:
            torch.testing.assert_close(state.model[n], twin[n], rtol=1e-4, atol=1e-5)
        for n in ("features.2.running_mean", "features.2.running_var"):
            torch.testing.assert_close(state.model[n], mean[n])
        assert state.model["features.2.num_batches_tracked"] == messages[0]["model"]["features.2.num_batches_tracked"]


# ---------------------------------------------------------------- distillation
def test_distillation_at_the_server_written_out():
    net, public = tiny_net(norm=True), PUBLIC
    algorithm = compiled({"distil": Distil(steps=3, lr=0.5)}, net)
    messages = uplinks(algorithm)
    advanced = after(algorithm, messages, net, public=public)
    weights = cohort_weights(algorithm, "samples", COHORT)
    first = messages[COHORT[0]]["model"]
    mean = {
        n: sum(weights[c] * messages[c]["model"][n] for c in COHORT) if v.is_floating_point() else v
        for n, v in first.items()
    }
    teacher, student = tiny_net(norm=True).eval(), tiny_net(norm=True).train()
    target = torch.zeros(len(public), CLASSES)
    with torch.no_grad():
        for c in COHORT:
            load(teacher, messages[c]["model"])
            target += F.softmax(teacher(public.x), 1) / len(COHORT)
    load(student, mean)
    sgd = torch.optim.SGD(student.parameters(), 0.5)
    losses = []
    for _ in range(3):
        loss = (target * (target.log() - F.log_softmax(student(public.x), 1))).sum(1).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for n, value in tensors(student).items():
        torch.testing.assert_close(advanced.state.model[n], value.detach(), rtol=1e-4, atol=1e-5)
    assert advanced.state.model["features.2.num_batches_tracked"] == 10 + 3
    assert not any(v.requires_grad for v in advanced.state.model.values())
    assert list(advanced.numbers) == ["distil.loss"]
    assert advanced.numbers["distil.loss"] == pytest.approx(losses, rel=1e-4)


def test_statistics_of_one_component_are_not_shown_to_the_next():
    net, public = tiny_net(norm=True), PUBLIC
    chains = ({"distil": Distil()}, {"distil": Distil(), "momentum": Momentum(beta=0.5)})
    states = []
    for components in chains:
        algorithm = compiled(components, net)
        states.append(after(algorithm, uplinks(algorithm), net, public=public).state)
    assert digest({"": states[0].model}) == digest({"": states[1].model})  # in the first round there is no momentum yet
    assert not set(states[1].slots["momentum.v"]) & set(compiled({}, net).facts.layout.buffers)


def test_a_method_without_public_samples_is_refused_before_the_first_round():
    with pytest.raises(PlanError, match=r"component 'distil' needs samples at the server.* public=500"):
        compiled({"distil": Distil()}, tiny_net(), public=0)


def test_public_samples_that_nobody_declared_are_asked_for_by_name():
    with pytest.raises(PlanError, match=r"component 'x' needs samples at the server.* public=500"):
        round_with(serve=lambda server: {"": server.public}, public=None)


# ---------------------------------------------------------------- the released model
def test_the_released_model_is_tested_and_another_one_is_sent():
    engine, plain = trial_after({"dyn": Dyn()}, rounds=1, norm=True), play({}, rounds=1, norm=True)
    state, mean = engine.progress.state, plain.progress.state.model
    released = engine.algorithm.released(state)
    share, start = engine.sampler.size / CLIENTS, engine.algorithm.facts.initial
    for n in engine.algorithm.facts.layout.shared:
        torch.testing.assert_close(released[n], mean[n])
        torch.testing.assert_close(state.model[n], mean[n] + share * (mean[n] - start[n]), rtol=1e-4, atol=1e-5)
        assert torch.equal(engine.algorithm.broadcast(state)["model"][n], state.model[n])
    ours, theirs = (e.records[0]["aggregation"] for e in (engine, plain))
    assert ours["per_class"] == theirs["per_class"]
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    net, test = tiny_net(norm=True).eval(), tiny_data().test
    load(net, released)
    assert engine.records[0]["aggregation"]["loss"] == pytest.approx(F.cross_entropy(net(test.x), test.y).item())
    load(net, state.model)
    assert engine.records[0]["aggregation"]["loss"] != pytest.approx(F.cross_entropy(net(test.x), test.y).item(), 1e-2)


def test_several_components_release_in_a_chain():
    @dataclass(frozen=True, kw_only=True)
    class Times(Component):
        factor: float

        def slots(self):
            return (Slot("f", "server", number(self.factor)),)

        def released(self, weights, view):
            assert view.info is None
            return {n: w * view.mine["f"]["value"] + 1 for n, w in weights.items()}

    algorithm = compiled({"a": Times(factor=2.0), "b": Times(factor=3.0)}, tiny_net())
    state = algorithm.fresh_state()
    for n, w in algorithm.released(state).items():
        torch.testing.assert_close(w, (2 * state.model[n] + 1) * 3 + 1)
    assert digest({"": state.model}) == digest({"": algorithm.facts.initial})


# ---------------------------------------------------------------- what is remembered
def test_what_is_remembered_is_seen_at_once_and_kept():
    def serve(server):
        server.remember("v", {"value": server.mine["v"]["value"] + 1})
        assert server.mine["v"]["value"] == 1

    def update(delta, server):
        server.remember("v", {"value": server.mine["v"]["value"] + 10})
        return delta

    assert round_with(update, serve, (Slot("v", "server", number(0.0)),)).state.slots["x.v"]["value"] == 11


def test_what_is_remembered_is_a_copy():
    def update(delta, server):
        live = {"value": torch.ones(())}
        server.remember("v", live)
        live["value"] += 1
        return delta

    assert round_with(update, slots=(Slot("v", "server", number(0.0)),)).state.slots["x.v"]["value"] == 1


def test_slots_cannot_be_set_by_assignment():
    def serve(server):
        server.mine["v"] = {"value": torch.zeros(())}

    with pytest.raises(TypeError, match="does not support item assignment"):
        round_with(serve=serve, slots=(Slot("v", "server", number(0.0)),))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"value": torch.zeros(3)}, r"slot 'x\.v' has 'value' of the shape \[3\], which must stay \[\]"),
        ({}, r"slot 'x\.v' has no 'value'"),
        (torch.zeros(()), r"slot 'x\.v' must be a dictionary of tensors by name, not tensor\(0\.\)"),
        ({"value": 0.0}, r"slot 'x\.v' must be a dictionary of tensors by name, not \{'value': 0\.0\}"),
        (
            {"value": torch.zeros(()), "more": torch.zeros(())},
            r"'x\.v' has 'more', which does not belong .* with value",
        ),
    ],
)
def test_a_slot_keeps_its_names_and_shapes(value, words):
    with pytest.raises(PlanError, match=words):
        round_with(serve=lambda _: {"v": value}, slots=(Slot("v", "server", number(0.0)),))


@pytest.mark.parametrize(
    ("mail", "words"),
    [
        ({2: {"value": torch.zeros(2)}}, r"the new mail of 'x\.post' has 'value' of the shape \[2\]"),
        ({CLIENTS: {"value": torch.zeros(())}}, r"mailbox 'x\.post' is by client id, 0 to 4, and 5 is none"),
        ({"value": torch.zeros(())}, r"mailbox 'x\.post' is by client id, 0 to 4, and 'value' is none"),
    ],
)
def test_a_mailbox_is_by_client_and_keeps_its_shapes(mail, words):
    with pytest.raises(PlanError, match=words):
        round_with(serve=lambda _: {"post": mail}, slots=(Slot("post", "mailbox", number(0.0)),))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d: {n: v for n, v in d.items() if "bias" not in n}, "algo.x.update returned has no 'features.1.bias'"),
        (lambda d: None, "algo.x.update returned must be a dictionary of tensors by name, not None"),
        (lambda d: {**d, "stray": torch.zeros(1)}, "algo.x.update returned has 'stray', which does not belong to it"),
        (lambda d: {**d, "features.1.bias": torch.zeros(1)}, r"'features.1.bias' of the shape \[1\], .* \[8\]"),
    ],
)
def test_a_step_has_the_names_and_shapes_of_the_model(edit, words):
    with pytest.raises(PlanError, match=words):
        round_with(update=lambda delta, _: edit(delta))


def test_a_step_in_double_precision_gives_a_model_in_single():
    plain = round_with(update=lambda delta, _: delta).state.model
    double = round_with(update=lambda delta, _: {n: d.double() for n, d in delta.items()}).state.model
    assert {n: v.dtype for n, v in double.items()} == {n: v.dtype for n, v in plain.items()}
    torch.testing.assert_close(double, plain)


# ---------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("value", "plain"),
    [(3, 3), (0.5, 0.5), (torch.tensor(2.0), 2.0), (torch.eye(2), [[1.0, 0.0], [0.0, 1.0]]), ([1, (2, 3)], [1, [2, 3]]),
     (np.arange(2), [0, 1])],
)  # fmt: skip
def test_numbers_are_recorded_as_plain_ones(value, plain):
    assert round_with(serve=lambda server: server.record("n", value)).numbers == {"x.n": plain}


@pytest.mark.parametrize("value", ["text", None, float("nan"), [1.0, float("inf")], {"a": 1}])
def test_what_is_no_number_cannot_be_recorded(value):
    with pytest.raises(PlanError, match=r"record: x\.n of round 1 is .*; only finite numbers") as refusal:
        round_with(serve=lambda server: server.record("n", value))
    assert ("set local.clip" in str(refusal.value)) is (value not in ("text", None, {"a": 1}))


# ---------------------------------------------------------------- the network
def test_the_servers_network_answers_like_the_network_and_has_gradients():
    net, x = tiny_net(norm=True).eval(), PUBLIC.x
    tree = {n: v.detach().clone() for n, v in tensors(net).items()}
    weight = tree["classifier.weight"].requires_grad_()
    h, z = ServerNetwork(net).forward(tree, x)
    assert torch.equal(z, net(x))
    assert torch.equal(ServerNetwork(net).classify(tree, h), z)
    (gradient,) = torch.autograd.grad(z.sum(), weight)
    torch.testing.assert_close(gradient, h.sum(0).expand(CLASSES, -1))


def test_running_statistics_move_only_in_training_and_only_in_the_given_tree():
    net, x = tiny_net(norm=True), PUBLIC.x
    before = digest({"": tensors(net)})
    tree = snapshot(tensors(net))
    network = ServerNetwork(net)
    network.forward(tree, x)
    assert digest({"": tree}) == before
    network.forward(tree, x, training=True)
    assert tree["features.2.num_batches_tracked"] == 1
    assert digest({"": tensors(net)}) == before


def test_an_incomplete_model_is_refused():
    net = tiny_net()
    tree = {n: v for n, v in tensors(net).items() if n != "features.1.bias"}
    with pytest.raises(
        PlanError, match=r"features, and .* no 'features\.1\.bias'. Add .*\{\*\*server\.model, \*\*tree\}"
    ):
        ServerNetwork(net).forward(tree, PUBLIC.x)
    assert ServerNetwork(net).classify({"classifier.weight": tree["classifier.weight"]}, torch.ones(2, 8)).shape == (
        2,
        4,
    )


def test_weights_and_samples_go_to_the_networks_device_and_answers_come_back():
    """Without an accelerator at hand: the meta device computes shapes only, and nothing can be copied back from it."""
    net, meta = tiny_net(norm=True), torch.device("meta")
    x = torch.empty(3, 1, SIDE, SIDE, device=meta)
    h, z = ServerNetwork(net, meta).forward(snapshot(tensors(net)), x)
    assert (h.device, z.device) == (meta, meta)
    here = ServerNetwork(net).forward({n: v.double() if v.is_floating_point() else v for n, v in tensors(net).items()},
                                      PUBLIC.x.double())  # fmt: skip
    assert here[1].dtype == torch.float64  # nothing but what is given takes part


@pytest.mark.parametrize(
    "ask", [lambda s: s.forward(s.model, s.public.x), lambda s: s.classify(s.model, torch.ones(1, 8))]
)
def test_a_classifier_that_another_component_replaces_is_not_run(ask):
    """It was never trained, and its logits would mean nothing."""
    net = tiny_net()

    @dataclass(frozen=True, kw_only=True)
    class Replaces(Component):
        def head(self, h, step):
            return h[:, :4]

    @dataclass(frozen=True, kw_only=True)
    class Asks(Component):
        def serve(self, server):
            ask(server)

    algorithm = compiled({"own": Replaces(during=("*",)), "asks": Asks()}, net)
    with pytest.raises(
        PlanError, match=r"component 'asks' runs the network's own classifier .* component 'own' replaces"
    ):
        after(algorithm, {c: {"model": {}} for c in COHORT}, net, public=PUBLIC)


def test_dropout_at_the_server_is_drawn_by_the_seed():
    with seeded(0, "net"):
        net = SplitModel(
            nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.Dropout()), nn.Linear(8, CLASSES, bias=False), 8
        )

    def update(delta, server):
        z = server.forward(server.model, server.public.x, training=True)[1]
        return {**delta, "classifier.weight": delta["classifier.weight"] + z.mean()}

    models = [digest({"": round_with(update, net=net).state.model}) for _ in range(2)]
    torch.rand(5)
    assert len({*models, digest({"": round_with(update, net=net).state.model})}) == 1


# ---------------------------------------------------------------- whole runs
test_fednova_with_momentum_conforms = battery({"nova": Nova(), "momentum": Momentum()})
test_distillation_with_adam_conforms = battery({"distil": Distil(), "adam": Adam()})
test_dyn_conforms = battery({"dyn": Dyn()})


def test_two_processes_give_the_numbers_of_one():
    made = []

    def pool(blueprint):
        made.append(ProcessExecutor(blueprint, workers=2))
        return made[-1]

    trial_after({}, rounds=0, executor=pool)
    try:
        for components in ({"distil": Distil(), "adam": Adam()}, {"nova": Nova(), "dyn": Dyn()}):
            executors_agree(components, made[0])
    finally:
        made[0].close()
