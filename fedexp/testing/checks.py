"""The checks of the conformance battery. Each raises AssertionError."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import TypeVar

import numpy as np

from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import FabricLoop, TrainerLoop
from fedexp.core.algorithm import Components
from fedexp.core.component import Component
from fedexp.core.state import Message, digest
from fedexp.errors import PlanError
from fedexp.execute.base import Blueprint, Executor, SerialExecutor
from fedexp.execute.task import Task, TaskResult
from fedexp.runs.plan import forecast
from fedexp.server.aggregate import is_finite
from fedexp.system import scratch
from fedexp.testing.agreement import demand, demand_close, demand_equal, double_precision, state_digest
from fedexp.testing.pretend_device import DEVICE, PretendDevice
from fedexp.testing.trial import CLIENTS, Net, card, play, tiny_net, trial, trial_after

T = TypeVar("T")
MIN_REASON = 40  # letters of a sentence that says why
ROUNDS = 2  # in which three of five clients take part, so that one at least does so twice


class Shuffled(SerialExecutor):
    """Sends jobs and results through pickle and runs them in another order."""

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, of which that to the last task was found first."""
        todo = list(tasks)
        assert len(todo) < 2 or todo[::-1] != todo  # noqa: S101 - else the check would check nothing
        done = [_copied(_copied(task).by(self._worker, broadcast)) for task in todo[::-1]]
        return iter(done[::-1])


class Watching(SerialExecutor):
    """Checks that nobody writes into what the server sent."""

    def map(self, tasks: Iterable[Task], broadcast: Message) -> Iterator[TaskResult]:
        """The answers, one by one."""
        for task in tasks:
            given = [broadcast, *(m for j in task.jobs for m in (j.downlink, j.private))]
            before = [digest(m) for m in given]
            answer = task.by(self._worker, broadcast)
            demand(before == [digest(m) for m in given], "a component changed what it was given")
            yield answer


def _copied(value: T) -> T:
    copied: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes
    return copied


# ---------------------------------------------------------------- the checks
def components_are_values(components: Components, net: Net = tiny_net) -> None:
    """I1: components are frozen, pickle, and are the same after a run."""
    before = pickle.dumps(dict(components))
    play(components, net=net, rounds=ROUNDS)
    demand(pickle.dumps(dict(components)) == before, "a component is not the same after a run: state must be in slots")
    demand(_copied(dict(components)) == dict(components), "a component does not survive pickling")


def order_does_not_matter(components: Components, net: Net = tiny_net) -> None:
    """I4, I6: jobs in another order, through pickle, give the same server, clients and records."""
    ordered, shuffled = (play(components, net=net, rounds=ROUNDS, executor=e) for e in (SerialExecutor, Shuffled))
    demand_equal(ordered, shuffled, "another execution order")


def resume_is_exact(components: Components, net: Net = tiny_net) -> None:
    """I2: a run that stops and is taken up from its files ends like one that never stopped; slots may be on disk.

    The run that stops is a shorter one, unless a component says that it depends on the total (``total_rounds``).
    """
    fixed = any(component.total_rounds for component in components.values())
    with scratch.folder() as folder:
        first = trial(components, folder, net=net, rounds=3 if fixed else 2, hold=0)
        first.rounds = 2
        first.run(card(first))
        second = trial(components, folder, net=net, rounds=3)
        demand(second.progress.state.round == 2, "the checkpoint was not taken up")
        second.run(card(second))
    demand_equal(play(components, net=net, rounds=3), second, "resuming")


def loops_agree(components: Components, net: Net = tiny_net) -> None:
    """Trainer and Fabric give the same weights and records, bit for bit, also with batch norm."""
    for norm in (False, True):
        fabric, trainer = (
            play(components, net=net, norm=norm, rounds=ROUNDS, loop=loop) for loop in (FabricLoop, TrainerLoop)
        )
        demand_equal(fabric, trainer, "the Trainer")


def batched_agrees(components: Components, net: Net = tiny_net) -> None:
    """Many clients at once give the same server, clients and records to rounding, which is small in double precision.

    Phases of components that say why they cannot be batched are done one by one, so that this holds for them too.
    """
    with double_precision():
        one, many = (
            play(components, net=net, rounds=ROUNDS, loop=loop, group=CLIENTS) for loop in (FabricLoop, BatchedLoop)
        )
    demand_close(one, many, "loop=batched")


def executors_agree(components: Components, executor: Executor, net: Net = tiny_net) -> None:
    """Another executor gives the same server, clients and records, bit for bit, also with batch norm.

    Not one of ``CHECKS``: starting an executor takes seconds, so that one is started for many algorithms.
    """

    def used(blueprint: Blueprint) -> Executor:
        executor.use(blueprint)
        return executor

    for norm in (False, True):
        here, there = (play(components, net=net, norm=norm, rounds=ROUNDS, executor=e) for e in (SerialExecutor, used))
        demand_equal(here, there, "another executor")


def nothing_given_is_changed(components: Components, net: Net = tiny_net) -> None:
    """I3: received weights and slots are read only, and so is the server's state before a round."""
    with scratch.folder() as folder:
        engine = trial(components, folder, net=net, norm=True, rounds=ROUNDS, executor=Watching)
        for done in range(engine.rounds):
            state = engine.progress.state
            before = state_digest(state)
            engine.play(done + 1)
            demand(before == state_digest(state), "a component wrote into the server's state")


def bytes_are_as_declared(components: Components, net: Net = tiny_net) -> None:
    """I7: what is declared is what is sent."""
    engine = play(components, net=net, rounds=ROUNDS)
    down, up = forecast(engine.algorithm)
    calls = engine.sampler.size * engine.rounds
    demand(engine.ledger.down == calls * sum(down.values()), "the downlink is not what the plan says")
    demand(engine.ledger.up <= calls * sum(up.values()), "the uplink is more than the plan says")
    demand(engine.ledger.up > 0 or not sum(up.values()), "nothing was sent up")


def newcomers_can_be_tested(components: Components, net: Net = tiny_net) -> None:
    """Clients that never took part have a personal model too."""
    engine = trial_after(components, rounds=1, fraction=0.2, net=net)
    tested = engine.measurement.test_clients(range(CLIENTS))
    scores = [result.after for result in tested.values()]
    demand(len(scores) == CLIENTS and all(s and s.n > 0 for s in scores), "a client could not be tested")


def released_model_is_whole(components: Components, net: Net = tiny_net) -> None:
    """The model that is tested and saved has every tensor of the network, finite, and is the same each time."""
    engine = trial_after(components, rounds=ROUNDS, net=net, norm=True)
    state, algorithm = engine.progress.state, engine.algorithm
    first, second = (algorithm.released(state) for _ in range(2))
    shapes = [{n: v.shape for n, v in tree.items()} for tree in (first, state.model)]
    demand(shapes[0] == shapes[1], "the released model has other tensors than the server's")
    demand(is_finite(first), "the released model has a value that is not finite")
    demand(digest({"": first}) == digest({"": second}), "the released model is not the same twice")


def one_client_is_enough(components: Components, net: Net = tiny_net) -> None:
    """A cohort of one, a client of one class, a client of one sample."""
    for client in range(CLIENTS):
        engine = trial_after(components, rounds=0, net=net)
        result = engine.measurement.train_once_more([client])[client]
        demand(result.error is None, str(result.error))
        demand(all(np.isfinite(v) for v in result.terms.values()), f"client {client}: a loss is not finite")


def neutral_is_fedavg(components: Components, net: Net = tiny_net) -> None:
    """Where every component has a neutral setting, the server's model is FedAvg's, bit for bit."""
    neutral: dict[str, Component] = {}
    for key, component in components.items():
        still = component.neutral()
        if still is None:
            return
        neutral[key] = still
    ours, plain = (play(chosen, net=net, rounds=ROUNDS) for chosen in (neutral, {}))
    same = digest({"": ours.progress.state.model}) == digest({"": plain.progress.state.model})
    demand(same, "the neutral setting is not FedAvg")


def slots_begin_alike(components: Components, net: Net = tiny_net) -> None:
    """Initial values depend on the seed alone."""
    one, two = trial_after(components, rounds=0, net=net), trial_after(components, rounds=0, net=net)
    for name in one.algorithm.slots:
        first, second = (e.algorithm.slots[name].init(e.algorithm.init(name)) for e in (one, two))
        demand(digest({name: first}) == digest({name: second}), f"slot {name} does not begin the same twice")


def composes_or_says_why(components: Components, net: Net = tiny_net) -> None:
    """With restricted softmax, with control variates and with both: it runs, or is refused before the first round."""
    from fedexp.algos.fedrs import RestrictedSoftmax
    from fedexp.algos.scaffold import Scaffold

    rs, scaffold = {"extra_rs": RestrictedSoftmax(alpha=0.5)}, {"extra_scaffold": Scaffold()}
    for combined in ({**rs, **components}, {**components, **scaffold}, {**rs, **components, **scaffold}):
        try:
            trial_after(combined, rounds=0, net=net)
        except PlanError as error:
            demand(len(str(error)) > MIN_REASON, f"a refusal that explains nothing: {error}")
        else:
            play(combined, rounds=ROUNDS, net=net)


def works_on_a_device(components: Components, net: Net = tiny_net) -> None:
    """On a pretended accelerator: nothing mixes host and device, no step makes the host wait, numbers are the same."""
    here = play(components, net=net, norm=True, rounds=ROUNDS)
    with PretendDevice() as device:
        there = play(components, net=net, norm=True, rounds=ROUNDS, loop=device.loop(FabricLoop), device=DEVICE)
    demand_equal(here, there, "a device")
    waits = [str(wait) for wait in device.waits if wait.part == "step"]
    demand(not waits, f"a training step makes the host wait for the device: {waits[0] if waits else ''}")


Check = Callable[..., None]  # check(components), or check(components, net) with a network of yours


def _on_a_network_it_takes(check: Check) -> Check:
    @wraps(check)
    def checked(components: Components, net: Net = tiny_net) -> None:
        try:
            trial_after(components, rounds=0, net=net)
        except PlanError as error:
            raise PlanError(
                f"the method refuses the battery's small network or data: {error}\n"
                "Give the check a network that it takes as a second argument: net(norm=True) makes one for 4 × 4 "
                "images of 4 classes."
            ) from error
        check(components, net)

    return checked


CHECKS: Mapping[str, Check] = {
    check.__name__: _on_a_network_it_takes(check)
    for check in (
        components_are_values, order_does_not_matter, resume_is_exact, loops_agree, batched_agrees,
        nothing_given_is_changed,
        bytes_are_as_declared, newcomers_can_be_tested, released_model_is_whole, one_client_is_enough,
        neutral_is_fedavg, slots_begin_alike, composes_or_says_why, works_on_a_device,
    )
}  # fmt: skip


def battery(components: Components, net: Net = tiny_net) -> Callable[[str], None]:
    """Makes a pytest test of each check; its name in the test file must begin with ``test_``."""
    import pytest

    @pytest.mark.parametrize("check", CHECKS)
    def conforms(check: str) -> None:
        CHECKS[check](components, net)

    return conforms
