"""The battery over every algorithm of conf/algo, found by glob; and saboteurs that each check must catch."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field

import pytest
import torch

from fedexp.algos.scaffold import Scaffold
from fedexp.build import make
from fedexp.config.compose import choices_of, composed
from fedexp.core.component import Component
from fedexp.core.state import Out, Slot, Upload, number
from fedexp.errors import ClientError, PlanError
from fedexp.testing import CHECKS


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
    """Refuses to be composed, and does not say why."""

    def plan(self, phases):
        if any(p.optim for p in phases):
            raise PlanError("no")
        return phases


SABOTEURS = {
    "components_are_values": Mutable(),
    "order_does_not_matter": OrderMatters(),
    "resume_is_exact": HiddenMemory(),
    "loops_agree": LoopDependent(),
    "nothing_given_is_changed": WritesIntoReceived(),
    "bytes_are_as_declared": SendsMoreThanDeclared(),
    "newcomers_can_be_tested": OnlyOldClients(),
    "one_client_is_enough": DividesByMissingClasses(),
    "neutral_is_fedavg": NotNeutral(),
    "slots_begin_alike": RandomSlot(),
    "composes_or_says_why": None,
}


@pytest.mark.parametrize("check", CHECKS)
def test_check_catches_its_saboteur(check):
    _memory.clear()
    saboteur = SABOTEURS[check]
    components = {"extra": Scaffold(), "mute": Mute()} if saboteur is None else {"saboteur": saboteur}
    with pytest.raises((AssertionError, KeyError, ClientError)):
        CHECKS[check](components)
