"""Compiling: what fits together, and what is said when it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.inherited import InheritedPrivateModel
from fedexp.build import build
from fedexp.client.network import layout_of, tensors
from fedexp.core.algorithm import Algorithm
from fedexp.core.component import Component, Phase, overrides, own
from fedexp.core.state import Slot, Upload, digest, number, received, snapshot
from fedexp.core.views import Facts
from fedexp.errors import ConfigError, PlanError
from fedexp.testing import CLASSES, CLIENTS, tiny_data, tiny_net


def facts(*, norm: bool = False) -> Facts:
    data, net = tiny_data(), tiny_net(norm=norm)
    return Facts(
        seed=0, rounds=10, fraction=0.6, n_clients=CLIENTS, n_classes=CLASSES, feature_dim=net.feature_dim,
        layout=layout_of(net), counts=data.counts, initial=snapshot(tensors(net)),
    )  # fmt: skip


def refused(**components: Component) -> str:
    with pytest.raises(PlanError) as error:
        Algorithm.compile(components, facts())
    return str(error.value)


def needing(*keys: str) -> Component:
    return dataclass(frozen=True, kw_only=True)(type("Needing", (Component,), {"needs": keys}))()


@dataclass(frozen=True, kw_only=True)
class AddsPhase(Component):
    name: str = "extra"
    start: str = "previous"
    train: str = "all"
    sends: bool = False

    def plan(self, phases):
        return [*phases, Phase(self.name, start=self.start, train=self.train, uploads=self.sends)]


@dataclass(frozen=True, kw_only=True)
class Head(Component):
    def head(self, h, step):
        return h


@dataclass(frozen=True, kw_only=True)
class Weighs(Component):
    def weigh(self, counts):
        return counts.sum(1)


@dataclass(frozen=True, kw_only=True)
class Keeps(Component):
    """Keeps a part private."""

    part: str = "classifier"

    def private_part(self):
        return self.part

    def slots(self):
        return (Slot("mine", "client", received),)


# ---------------------------------------------------------------- what does not fit
def test_a_missing_need_names_both_and_says_what_to_do():
    message = refused(a=needing("means"), b=RestrictedSoftmax())
    assert message == (
        "component 'a' needs 'means', but the algorithm has only ['a', 'b']. "
        "Add it to the algorithm's yaml under that key."
    )


def test_a_circle_of_needs():
    message = refused(a=needing("b"), b=needing("a"), c=RestrictedSoftmax())
    assert message == "components need each other in a circle: ['a', 'b']"


def test_two_phases_of_one_name():
    message = refused(one=AddsPhase(), two=AddsPhase())
    assert message == (
        "two phases share a name: ['local', 'extra', 'extra']. Two components of one kind cannot be combined."
    )


def test_an_unknown_phase_in_during():
    message = refused(rs=RestrictedSoftmax(during=("local", "personal")))
    assert message == (
        "component 'rs' acts on phases ['personal'], but the plan has ['local']. "
        "Add a component that makes such a phase, or set algo.rs.during."
    )


@pytest.mark.parametrize("during", [("local",), ("*",), ("eval",), ("local", "eval"), ()])
def test_known_phases_in_during(during):
    Algorithm.compile({"rs": RestrictedSoftmax(during=during)}, facts())


def test_two_heads_in_one_phase():
    assert refused(a=Head(), b=Head(during=("*",))) == (
        "components ['a', 'b'] both replace the classifier in phase 'local'; only one can"
    )
    Algorithm.compile({"a": Head(), "b": Head(during=("extra",)), "p": AddsPhase()}, facts())


def test_a_head_in_a_phase_that_trains_only_the_classifier():
    message = refused(p=AddsPhase(train="classifier"), h=Head(during=("extra",)))
    assert message == "phase 'extra' trains only the classifier, which component 'h' replaces"


def test_two_weighers():
    assert refused(a=Weighs(), b=Weighs()) == "components ['a', 'b'] both weigh the clients; only one can"


def test_two_that_keep_the_same_part():
    assert "components ['a', 'b'] each put their own classifier in place" in refused(a=Keeps(), b=Keeps())
    both = Keeps(part="norm+classifier")
    assert "components ['a', 'b'] each put their own classifier in place" in refused(a=Keeps(), b=both)


def test_two_uploading_phases_and_none():
    assert refused(a=AddsPhase(sends=True)) == (
        "exactly one phase must upload, not ['local', 'extra'] of ['local', 'extra']"
    )

    @dataclass(frozen=True, kw_only=True)
    class Silent(Component):
        def plan(self, phases):
            return [replace(p, uploads=False) for p in phases]

    assert refused(a=Silent()) == "exactly one phase must upload, not none of ['local']"


@pytest.mark.parametrize("start", [own("mine"), "mine", "other.mine"])
def test_a_start_that_is_no_private_slot(start):
    assert "phase 'extra' starts from" in refused(a=AddsPhase(start=start))


def test_a_server_slot_is_no_start():
    @dataclass(frozen=True, kw_only=True)
    class FromServer(AddsPhase):
        start: str = own("s")

        def slots(self):
            return (Slot("s", "server", received),)

    assert "'a.s', which is not a private slot" in refused(a=FromServer())


def test_a_parameter_out_of_range_is_reported_under_its_key():
    assert refused(soft=RestrictedSoftmax(alpha=1.5)) == "algo.soft.alpha must be between 0 and 1, not 1.5"
    assert refused(soft=RestrictedSoftmax(alpha=float("nan"))) == "algo.soft.alpha must be a finite number, not nan"


def test_all_misfits_at_once():
    message = refused(
        a=RestrictedSoftmax(alpha=-1, min_count=0, during=("nowhere",)), b=Weighs(), c=Weighs(), d=Head(), e=Head()
    )
    assert len(message.splitlines()) == 5
    for part in ("algo.a.alpha", "algo.a.min_count", "nowhere", "weigh", "classifier"):
        assert part in message


# ---------------------------------------------------------------- all problems of a configuration
def test_everything_wrong_with_a_configuration_is_said_at_once(configured):
    config = configured("algo=fedrs", "partition=classes")
    config["cohort"]["fraction"] = 0
    config["partition"]["classes"] = 0
    config["algo"]["rs"]["alpha"] = 2
    config["every"]["evaluate"] = 0
    config["local"]["clip"] = -1
    with pytest.raises(ConfigError) as error:
        build(config)
    lines = str(error.value).splitlines()
    assert len(lines) == 5
    for part in (
        "cohort.fraction must be in (0, 1], not 0", "partition.classes must be between 1 and 1,000,000,000, not 0",
        "algo.rs.alpha must be between 0 and 1, not 2", "every.evaluate must be between 1 and 1,000,000,000, not 0",
        "local.clip must be greater than 0 or null, not -1",
    ):  # fmt: skip
        assert part in str(error.value)


@pytest.mark.parametrize(
    "key", ["rounds", "cohort.clients", "local.batch_size", "local.epochs", "every.evaluate", "every.checkpoint",
            "evaluate.finetune_epochs", "evaluate.window", "limit", "cohort.fraction", "executor.workers",
            "executor.threads", "executor.per_device"],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1])
def test_every_number_that_must_be_positive(configured, key, value):
    config = configured("executor=processes", "evaluate=fedgela")
    group, _, name = key.rpartition(".")
    (config[group] if group else config)[name] = value
    with pytest.raises(ConfigError, match=rf"{key} must be .*not {value}"):
        build(config)


def test_a_fraction_above_one(configured):
    config = configured()
    config["cohort"]["fraction"] = 1.01
    with pytest.raises(ConfigError, match=r"cohort\.fraction must be in \(0, 1\], not 1.01"):
        build(config)


def test_a_target_that_cannot_be_imported(configured, monkeypatch):
    monkeypatch.setenv("FEDEXP_ALLOW", "nowhere")
    config = configured()
    config["algo"] = {"mine": {"_target_": "nowhere.Mine"}}
    with pytest.raises(ConfigError, match=r"nowhere\.Mine cannot be imported"):
        build(config)


# ---------------------------------------------------------------- what a compiled algorithm says
def test_fedavg_is_the_empty_algorithm():
    algorithm = Algorithm.compile({}, facts())
    assert algorithm.phases == (Phase("local", uploads=True),)
    assert (algorithm.slots, algorithm.uploads, algorithm.personal, algorithm.global_view) == ({}, {}, False, True)
    assert algorithm.travelling == tuple(algorithm.facts.initial)


def test_needs_come_first_and_otherwise_the_order_stays():
    components = {"z": needing("m"), "b": RestrictedSoftmax(), "m": RestrictedSoftmax(), "a": RestrictedSoftmax()}
    assert list(Algorithm.compile(components, facts()).components) == ["b", "m", "z", "a"]


def test_own_starts_are_bound_to_the_component_that_proposes():
    @dataclass(frozen=True, kw_only=True)
    class Second(Keeps):
        part: str = "none"

        def plan(self, phases):
            return [*phases, Phase("second", start=own("mine"))]

    phases = Algorithm.compile({"k": Second(), "e": AddsPhase()}, facts()).phases
    assert [(p.name, p.start) for p in phases] == [("local", "received"), ("second", "k.mine"), ("extra", "previous")]


@pytest.mark.parametrize("part", ["features", "classifier", "norm", "all", "none"])
def test_a_private_part_never_travels(part):
    algorithm = Algorithm.compile({"k": Keeps(part=part)}, facts(norm=True))
    layout = algorithm.facts.layout
    kept = set(layout.part(part))
    assert set(algorithm.travelling) == set(layout.parameters + layout.buffers) - kept
    assert set(layout.shared) | set(layout.statistics) == set(algorithm.travelling)
    message = algorithm.downlink(algorithm.fresh_state(), 0)
    assert set(message.get("model", {})) == set(algorithm.travelling)
    model, private = algorithm.open(message, {})
    assert set(model) == set(algorithm.facts.initial)
    assert set(private) == {"k.mine"}


def test_private_parts_unite():
    algorithm = Algorithm.compile({"c": Keeps(part="classifier"), "n": Keeps(part="norm")}, facts(norm=True))
    parts = algorithm.facts.layout.parts
    assert not set(algorithm.travelling) & (parts["classifier"] | parts["norm"])
    assert algorithm.travelling


@dataclass(frozen=True, kw_only=True)
class Everything(Component):
    """One slot of each scope."""

    keeps = ("model",)

    def slots(self):
        return (
            Slot("silent", "server", number(1)), Slot("told", "server", number(2), down=True),
            Slot("mine", "client", number(3)), Slot("post", "mailbox", number(4), down=True),
            Slot("kept", "mailbox", number(5)),
            Slot("frame", "constant", lambda init: {"value": torch.randn(3, generator=init.generator)}),
        )  # fmt: skip

    def uploads(self):
        return Upload("sent", number(0), "keep"), Upload("summed", number(0), "sum")


def test_scopes_go_where_they_belong():
    algorithm = Algorithm.compile({"e": Everything()}, facts())
    state = algorithm.fresh_state()
    assert set(state.slots) == {"e.silent", "e.told"}
    assert set(state.mailboxes) == {"e.post", "e.kept"}
    assert set(algorithm.constants) == {"e.frame"}
    message = algorithm.downlink(state, 3)
    assert set(message) == {"model", "e.told", "e.post"}
    assert message["e.post"]["value"] == 4
    assert algorithm.keeps() == {"model", "e.sent"}
    _, private = algorithm.open(message, {"e.mine": {"value": torch.tensor(9.0)}})
    assert private["e.mine"]["value"] == 9  # what a client has is not made again
    views = algorithm.views(algorithm.constants, message, private)
    assert set(views["e"]) == {"frame", "told", "post", "mine"}


def test_constants_depend_on_the_seed_and_the_key_alone():
    one, two = (Algorithm.compile({"e": Everything()}, facts()).constants for _ in range(2))
    assert digest(one) == digest(two)
    other = Algorithm.compile({"f": Everything()}, facts()).constants
    assert not torch.equal(other["f.frame"]["value"], one["e.frame"]["value"])
    seeded = Algorithm.compile({"e": Everything()}, replace(facts(), seed=1)).constants
    assert digest(seeded) != digest(one)


def test_a_mailbox_goes_to_its_owner_only():
    algorithm = Algorithm.compile({"e": Everything()}, facts())
    state = algorithm.fresh_state()
    state.mailboxes["e.post"][2] = {"value": torch.tensor(77.0)}
    assert algorithm.downlink(state, 2)["e.post"]["value"] == 77
    assert algorithm.downlink(state, 1)["e.post"]["value"] == 4


def test_views_of_keys_that_begin_alike():
    algorithm = Algorithm.compile({"e": Everything(), "e2": Everything()}, facts())
    views = algorithm.views({"e.mine": number(1)(None), "e2.mine": number(2)(None)})
    assert views["e"]["mine"]["value"] == 1
    assert views["e2"]["mine"]["value"] == 2


def test_active_asks_for_the_phase_and_the_seam():
    algorithm = Algorithm.compile({"rs": RestrictedSoftmax(), "h": Head(during=("*",))}, facts())
    assert [k for k, _ in algorithm.active("local", "logits")] == ["rs"]
    assert algorithm.active("eval", "logits") == []
    assert [k for k, _ in algorithm.active("eval", "head")] == ["h"]
    assert algorithm.active("local", "grads") == []
    assert overrides(RestrictedSoftmax(), "logits")
    assert not overrides(RestrictedSoftmax(), "loss")


def test_map_splits_the_local_steps():
    hpm = InheritedPrivateModel(during=("personal",))
    algorithm = Algorithm.compile({"rs": RestrictedSoftmax(), "hpm": hpm}, facts())
    local, personal = algorithm.phases
    assert (local.begin, local.end, local.uploads) == (0.0, 0.5, True)
    assert (personal.begin, personal.end, personal.uploads) == (0.5, 1.0, False)
    assert personal.continues
    assert personal.start == "previous"
    assert algorithm.uploading is local
    assert algorithm.personal
