"""Components that do not keep to what they declare: each is refused with a sentence, at compile or at first use."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from fedexp.build import build
from fedexp.core.component import Component, Phase, own
from fedexp.core.state import Out, ReadOnlyTree, Slot, Upload, number, part_of_model, pick, zeros_shared
from fedexp.errors import ClientError, ConfigError, PlanError
from fedexp.testing import play, trial_after


def refused(*components: Component, **options: Any) -> str:
    """What compiling says."""
    with pytest.raises(PlanError) as error:
        trial_after({f"c{i}" if i else "c": c for i, c in enumerate(components)}, rounds=0, **options)
    return str(error.value)


def fails(component: Component) -> str:
    """What the first client's round says."""
    with pytest.raises(ClientError) as error:
        play({"c": component})
    return str(error.value)


# ---------------------------------------------------------------- what finish hands back
@dataclass(frozen=True, kw_only=True)
class HandsBack(Component):
    slot: str = "model"
    upload: str = "sum"
    shape: tuple[int, ...] = ()
    as_double: bool = False

    def slots(self):
        return Slot("model", "client", number(0.0)), Slot("shared", "server", number(0.0), down=True)

    def uploads(self):
        return (Upload("sum", number(0.0), "sum"),)

    def finish(self, local):
        value = torch.zeros(self.shape, dtype=torch.float64 if self.as_double else torch.float32)
        return Out(slots={self.slot: {"value": value}}, uploads={self.upload: {"value": torch.tensor(0.0)}})


def test_what_is_declared_is_taken():
    play({"c": HandsBack()})


@pytest.mark.parametrize("name", ["modle", "shared"])  # misspelt, and the server's
def test_a_slot_that_is_not_the_clients(name):
    said = fails(HandsBack(slot=name))
    assert f", client 2: component 'c' handed back the private slot {name!r}, but it declares no such one." in said
    assert "'model'" in said or "Known: model." in said


def test_an_upload_that_is_not_declared():
    said = fails(HandsBack(upload="sums"))
    assert said.endswith(
        "component 'c' handed back the upload 'sums', but it declares no such one. Did you mean 'sum'?"
    )


@pytest.mark.parametrize(
    ("settings", "now"), [({"shape": (3,)}, "[3] of torch.float32"), ({"as_double": True}, "[] of torch.float64")]
)
def test_a_slot_that_changes_its_shape_or_type(settings, now):
    assert fails(HandsBack(**settings)).endswith(
        f"component 'c' handed back the private slot 'model' with 'value' as {now}, but it was declared as "
        "[] of torch.float32. Names, shapes and types stay as declared."
    )


@dataclass(frozen=True, kw_only=True)
class PartOfUpload(Component):
    def uploads(self):
        return (Upload("all", zeros_shared, "sum"),)

    def finish(self, local):
        return Out(uploads={"all": pick(local.last, ["classifier.weight"])})


def test_an_upload_that_lacks_a_tensor():
    said = fails(PartOfUpload())
    assert "handed back the upload 'all' with 'features.1.weight' as absent, but it was declared as [8, 16]" in said


@dataclass(frozen=True, kw_only=True)
class RemembersUnknown(Component):
    def slots(self):
        return (Slot("model", "client", number(0.0)),)

    def loss(self, step):
        step.remember("modle", {"value": torch.tensor(1.0)})


def test_a_slot_that_is_remembered_must_be_declared():
    assert fails(RemembersUnknown()).endswith(
        "the private slot 'modle', but it declares no such one. Did you mean 'model'?"
    )


# ---------------------------------------------------------------- whole trees
@dataclass(frozen=True, kw_only=True)
class Partial(Component):
    seam: str = "start"
    more: bool = False

    def start(self, weights, view):
        return self._part(weights) if self.seam == "start" else weights

    def view(self, weights, view):
        return self._part(weights) if self.seam == "view" else weights

    def uplink(self, weights, local):
        return self._part(weights) if self.seam == "uplink" else weights

    def _part(self, weights):
        return {**weights, "x": torch.zeros(1)} if self.more else pick(weights, ["classifier.weight"])


@pytest.mark.parametrize("seam", ["start", "view", "uplink"])
@pytest.mark.parametrize(
    ("more", "words"), [(False, "it lacks 'features.1.bias'"), (True, "it has 'x', which the network does not")]
)
def test_a_part_of_a_tree_where_a_whole_one_is_due(seam, more, words):
    said = fails(Partial(seam=seam, more=more))
    assert f"{seam} of component 'c' must give a whole tree, but {words}. Begin with the weights" in said


# ---------------------------------------------------------------- parts and phases
@dataclass(frozen=True, kw_only=True)
class Keeps(Component):
    part: str = "clasifier"

    def private_part(self):
        return self.part


def test_an_unknown_private_part():
    assert refused(Keeps()) == "private_part of component 'c' is 'clasifier'. Did you mean 'classifier'?"


@dataclass(frozen=True, kw_only=True)
class SlotOfUnknownPart(Component):
    def slots(self):
        return (Slot("head", "client", part_of_model("clasifier")),)


def test_a_slot_of_an_unknown_part_is_found_before_the_first_round(configured, monkeypatch):
    monkeypatch.setenv("FEDEXP_ALLOW", "tests")
    config = configured()
    config["algo"] = {"c": {"_target_": f"{__name__}.SlotOfUnknownPart", "during": ["local"]}}
    with pytest.raises(ConfigError, match=r"the network has no part 'clasifier'\. Did you mean 'classifier'"):
        build(config)


@dataclass(frozen=True, kw_only=True)
class Plans(Component):
    """Adds a phase after the local one, or edits that one."""

    phase: Phase = field(default_factory=lambda: Phase("extra", start="previous"))
    edits: tuple[tuple[str, Any], ...] = ()

    def slots(self):
        return Slot("head", "client", part_of_model("classifier")), Slot("sent", "server", number(0.0), down=True)

    def plan(self, phases):
        return [*(replace(p, **dict(self.edits)) for p in phases), self.phase]


def added(**settings: Any) -> Component:
    return Plans(phase=Phase(**{"name": "extra", "start": "previous", **settings}))


@pytest.mark.parametrize(
    ("component", "words"),
    [
        (added(train="clasifier"), "phase 'extra' trains 'clasifier'. Did you mean 'classifier'?"),
        (
            added(train="features+hed"),
            "phase 'extra' trains 'hed'. Known: all, body, classifier, features, none, norm.",
        ),
        (added(train="norm"), "phase 'extra' trains 'norm', of which this network has no parameters"),
        (added(epochs=0.0), "phase 'extra' has epochs=0.0; they must be greater than 0, or None"),
        (added(begin=0.5, end=0.5), "phase 'extra' has begin=0.5 and end=0.5; it must be 0 <= begin < end <= 1"),
        (added(batches=0), "phase 'extra' has batches=0; a step takes a whole number of them, at least one"),
        (added(start="recieved"), "phase 'extra' starts from 'recieved', which is not a private slot"),
        (added(start=own("sent")), "phase 'extra' starts from 'c.sent', which is not a private slot"),
        (
            added(start=own("head")),
            "slot 'c.head', from which phase 'extra' starts, must give a whole tree, but it lacks 'features.1.bias'",
        ),
        (Plans(edits=(("start", "previous"),)), "phase 'local' is the first: it has no phase before it"),
        (Plans(edits=(("continues", True),)), "phase 'local' is the first: it has no phase before it"),
        (added(continues=True, batches=2), "'extra' continues 'local', but takes another number of batches in a step"),
        (added(test=True, start="received"), "phase 'extra' is for the test: it starts from the model to be tested"),
        (added(test=True, continues=True), "phase 'extra' is for the test"),
        (added(optim={"learning_rate": 1.0}), "phase 'extra' has optim={'learning_rate': 1.0}, which the optimizer"),
        (added(optim={"lr": -1.0}), "phase 'extra' has optim={'lr': -1.0}, which the optimizer"),
    ],
)
def test_a_phase_that_cannot_be_is_refused_before_the_first_round(component, words):
    assert words in refused(component)


@dataclass(frozen=True, kw_only=True)
class PlansNothing(Component):
    def plan(self, phases):
        phases.append(Phase("extra", start="previous"))


def test_a_plan_that_returns_nothing():
    assert refused(PlansNothing()) == "plan of component 'c' must return a list of phases, not None"


@dataclass(frozen=True, kw_only=True)
class Slows(Component):
    def plan(self, phases):
        return [replace(p, optim={"learning_rate": 0.1}) for p in phases]


def test_settings_that_the_optimizer_does_not_have_are_found_when_a_run_is_built(configured, monkeypatch):
    monkeypatch.setenv("FEDEXP_ALLOW", "tests")
    config = configured()
    config["algo"] = {"c": {"_target_": f"{__name__}.Slows", "during": ["local"]}}
    with pytest.raises(ConfigError, match=r"phase 'local' has optim={'learning_rate': 0\.1}, which the optimizer"):
        build(config)


# ---------------------------------------------------------------- misspelt seams
@dataclass(frozen=True, kw_only=True)
class Misspelt(Component):
    def finsh(self, local):
        return Out()


@dataclass(frozen=True, kw_only=True)
class Inherits(Misspelt):
    @property
    def epsilon(self):
        return 1.0

    def _helper(self):
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Static(Component):
    @staticmethod
    def gradz():
        return None


@pytest.mark.parametrize(
    ("component", "name", "near"), [(Misspelt(), "finsh", "finish"), (Inherits(), "finsh", "finish"),
                                    (Static(), "gradz", "grads")],
)  # fmt: skip
def test_a_public_method_that_is_no_seam(component, name, near):
    said = refused(component)
    assert said.startswith(f"component 'c' has a public method {name!r}, which is not a seam and is never called. ")
    assert f"Did you mean '{near}'" in said
    assert said.endswith("The name of a helper begins with an underscore.")
    assert len(said.splitlines()) == 1


# ---------------------------------------------------------------- what components are shown is read only
@dataclass(frozen=True, kw_only=True)
class Writes(Component):
    where: str = "mine"

    def slots(self):
        return (Slot("model", "client", number(0.0)),)

    def start(self, weights, view):
        self._write({"start": lambda: weights.update(x=1), "start mine": view.mine["model"].clear})
        return weights

    def view(self, weights, view):
        self._write({"view": lambda: weights.pop("classifier.weight")})
        return weights

    def loss(self, step):
        self._write({
            "mine": lambda: self._put(step.mine),
            "slot": lambda: step.mine["model"].__setitem__("value", torch.tensor(1.0)),
            "weights": lambda: step.weights.__setitem__("classifier.weight", None),
            "received": lambda: step.received.setdefault("x", None),
            "initial": lambda: step.facts.initial.__delitem__("classifier.weight"),
        })  # fmt: skip

    def finish(self, local):
        self._write({"end": lambda: local.last.update(x=1)})
        return Out()

    def _put(self, slots):
        slots["model"] = {}

    def _write(self, ways):
        if self.where in ways:
            ways[self.where]()


@pytest.mark.parametrize(
    "where", ["start", "start mine", "view", "mine", "slot", "weights", "received", "initial", "end"]
)
def test_nobody_writes_into_what_is_shown(where):
    said = fails(Writes(where=where))
    assert ("this tree is read only: return a new one" in said) or ("does not support item assignment" in said)


def test_a_read_only_tree_is_a_dictionary_to_those_who_read():
    tree = ReadOnlyTree({"a": torch.ones(1)})
    assert isinstance(tree, dict)
    assert list({**tree, "b": 2}) == ["a", "b"]
    copied = pickle.loads(pickle.dumps(tree))  # noqa: S301
    assert type(copied) is dict
    assert torch.equal(copied["a"], tree["a"])
    for write in (lambda: tree.update(b=1), lambda: tree.__ior__({"b": 1}), tree.popitem, tree.clear):
        with pytest.raises(TypeError, match="read only"):
            write()
