"""The battery over every algorithm of conf/algo, found by glob; and saboteurs that each check must catch."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from fedexp.algos.scaffold import Scaffold
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.core.component import Component
from fedexp.core.state import Out, Slot, Upload, number, received
from fedexp.errors import ClientError, PlanError
from fedexp.testing import CHECKS, battery, play, tiny_net


@pytest.fixture(scope="session", params=choices_of("algo"))
def components(request):
    config = composed([f"algo={request.param}"])
    return {key: make(node) for key, node in config["algo"].items()}


@pytest.mark.parametrize("check", CHECKS)
def test_algorithm_conforms(components, check):
    CHECKS[check](components)


# ---------------------------------------------------------------- saboteurs
_memory: dict[int, int] = {}


@dataclass(frozen=True, kw_only=True)
class HiddenMemory(Component):
    """Remembers on the side how often clients were seen, instead of declaring a slot."""

    def uplink(self, weights, local):
        _memory[local.client] = _memory.get(local.client, 0) + 1
        return {n: w * (1 + 0.01 * _memory[local.client]) for n, w in weights.items()}


@dataclass(frozen=True, kw_only=True)
class OrderMatters(Component):
    """Depends on which client was worked on before."""

    def uplink(self, weights, local):
        last = _memory.get(-1, 0)
        _memory[-1] = local.client
        return {n: w + 0.01 * last for n, w in weights.items()}


@dataclass(frozen=True, kw_only=True)
class WritesIntoReceived(Component):
    """Edits the weights the server sent."""

    def start(self, weights, view):
        for tensor in weights.values():
            tensor.mul_(1.01)
        return weights


@dataclass(frozen=True, kw_only=True)
class WritesIntoServerState(Component):
    """Edits the server's model in place."""

    def update(self, delta, server):
        for tensor in server.model.values():
            tensor.add_(1)
        return delta


@dataclass(frozen=True, kw_only=True)
class ShiftsEveryTest(Component):
    """Trains well, and shifts the answers of every test by one more class than those of the test before."""

    during: tuple[str, ...] = ("eval",)

    def logits(self, z, step):
        _memory[-2] = _memory.get(-2, 0) + 1
        return z.roll(_memory[-2] // 3, 1)


@dataclass(frozen=True, kw_only=True)
class ReleasesAPart(Component):
    """Forgets the classifier."""

    def released(self, weights, view):
        return {n: w for n, w in weights.items() if not n.startswith("classifier")}


@dataclass(frozen=True, kw_only=True)
class SendsMoreThanDeclared(Component):
    """Declares one number and sends a thousand."""

    def uploads(self):
        return (Upload("u", number(0.0), "sum"),)

    def finish(self, local):
        return Out(uploads={"u": {"value": torch.zeros(1000)}})


@dataclass(frozen=True, kw_only=True)
class NotNeutral(Component):
    """Says that it does nothing, and does something."""

    def grads(self, grads, step):
        return {n: 1.01 * g for n, g in grads.items()}

    def neutral(self):
        return self


@dataclass(frozen=True, kw_only=True)
class Mutable(Component):
    """Keeps state in a hyper-parameter."""

    log: list = field(default_factory=list)

    def finish(self, local):
        self.log.append(local.client)
        return Out()


@dataclass(frozen=True, kw_only=True)
class LoopDependent(Component):
    """Trains otherwise under a Trainer."""

    def grads(self, grads, step):
        frames = [f.filename for f in inspect.stack()]
        return {n: g * (1.01 if any("trainer" in f for f in frames) else 1.0) for n, g in grads.items()}


@dataclass(frozen=True, kw_only=True)
class DividesByMissingClasses(Component):
    """Has no answer for a client that owns a single class."""

    def loss(self, step):
        return step.ce * 0 + 1.0 / (step.info.owned.sum() - 1)


@dataclass(frozen=True, kw_only=True)
class OnlyOldClients(Component):
    """Has a personal model only for clients that were trained."""

    def slots(self):
        return (Slot("mine", "client", lambda init: {}),)

    def finish(self, local):
        return Out(slots={"mine": local.last})

    def view(self, weights, view):
        return {n: view.mine["mine"][n] for n in weights}


@dataclass(frozen=True, kw_only=True)
class RandomSlot(Component):
    """Begins with a value that no seed determines."""

    def slots(self):
        return (Slot("r", "server", lambda init: {"value": torch.tensor(time.perf_counter(), dtype=torch.float64)}),)


@dataclass(frozen=True, kw_only=True)
class Mute(Component):
    """Refuses to be composed with control variates, and does not say why."""

    def clashes(self, before, after):
        return ["says no"] if "extra_scaffold" in after else []


@dataclass(frozen=True, kw_only=True)
class RefusesTooLate(Component):
    """Finds out in the first round that it cannot be composed with control variates."""

    def serve(self, server):
        if "extra_scaffold" in server.views:
            raise PlanError("component 'saboteur' cannot be combined with component 'extra_scaffold'.")


@dataclass(frozen=True, kw_only=True)
class ComparesWithTheHost(Component):
    """Compares live weights with those in ``facts``, which are on the host."""

    def loss(self, step):
        return sum((w - step.facts.initial[n]).square().sum() for n, w in step.weights.items() if w.requires_grad)


@dataclass(frozen=True, kw_only=True)
class LooksAtTheLoss(Component):
    """Asks in every step how large the loss is."""

    def loss(self, step):
        return step.ce if step.ce.item() > 1 else step.ce * 0.5


@dataclass(frozen=True, kw_only=True)
class CountsOnTheTotal(Component):
    """Depends on the total number of rounds, and does not say so."""

    def loss(self, step):
        return step.ce / step.facts.rounds


@dataclass(frozen=True, kw_only=True)
class MeansOverPadding(Component):
    """Says that it treats samples one by one, and takes a mean over the batch, which is filled up for some clients."""

    padded: ClassVar[bool] = True

    def loss(self, step):
        return step.h.square().mean()


SABOTEURS = [
    ("components_are_values", {"saboteur": Mutable()}),
    ("order_does_not_matter", {"saboteur": OrderMatters()}),
    ("order_does_not_matter", {"saboteur": ShiftsEveryTest()}),
    ("resume_is_exact", {"saboteur": HiddenMemory()}),
    ("resume_is_exact", {"saboteur": ShiftsEveryTest()}),
    ("resume_is_exact", {"saboteur": CountsOnTheTotal()}),
    ("loops_agree", {"saboteur": LoopDependent()}),
    ("batched_agrees", {"saboteur": MeansOverPadding()}),
    ("nothing_given_is_changed", {"saboteur": WritesIntoReceived()}),
    ("nothing_given_is_changed", {"saboteur": WritesIntoServerState()}),
    ("bytes_are_as_declared", {"saboteur": SendsMoreThanDeclared()}),
    ("newcomers_can_be_tested", {"saboteur": OnlyOldClients()}),
    ("released_model_is_whole", {"saboteur": ReleasesAPart()}),
    ("one_client_is_enough", {"saboteur": DividesByMissingClasses()}),
    ("neutral_is_fedavg", {"saboteur": NotNeutral()}),
    ("slots_begin_alike", {"saboteur": RandomSlot()}),
    ("composes_or_says_why", {"saboteur": Mute()}),
    ("composes_or_says_why", {"saboteur": RefusesTooLate()}),
    ("works_on_a_device", {"saboteur": ComparesWithTheHost()}),
    ("works_on_a_device", {"saboteur": LooksAtTheLoss()}),
]


@pytest.mark.parametrize(("check", "components"), SABOTEURS, ids=lambda v: v if isinstance(v, str) else "")
def test_check_catches_its_saboteur(check, components):
    _memory.clear()
    with pytest.raises((AssertionError, KeyError, ClientError, PlanError)):
        CHECKS[check](components)


def test_every_check_has_a_saboteur():
    assert {check for check, _ in SABOTEURS} == set(CHECKS)


# ---------------------------------------------------------------- for methods of others
@dataclass(frozen=True, kw_only=True)
class NeedsNorm(Component):
    """Takes networks with batch norm only."""

    def problems(self, facts):
        if not facts.layout.buffers:
            yield "during needs a network with batch norm"


def test_a_method_that_refuses_the_small_network_is_told_what_to_do():
    with pytest.raises(PlanError, match=r"(?s)algo\.mine\.during needs a network.*Give the check a net"):
        CHECKS["slots_begin_alike"]({"mine": NeedsNorm()})
    CHECKS["order_does_not_matter"]({"mine": NeedsNorm()}, lambda norm: tiny_net(norm=True))


@dataclass(frozen=True, kw_only=True)
class Alone(Component):
    """Sends no weights: every client trains for itself, and there is no server model to test."""

    personal: ClassVar[bool] = True
    global_view: ClassVar[bool] = False

    def private_part(self):
        return "all"

    def slots(self):
        return (Slot("model", "client", received),)

    def start(self, weights, view):
        return view.mine["model"]

    def finish(self, local):
        return Out(slots={"model": local.last})


test_a_method_that_sends_no_weights_conforms = battery({"alone": Alone()})


def test_control_variates_of_nothing_that_travels_are_empty():
    engine = play({"alone": Alone(), "scaffold": Scaffold()})
    assert engine.progress.state.slots["scaffold.c"] == {}
    assert engine.ledger.up == 0
