"""The same numbers wherever the work runs, and whatever happens to those who do it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pytest

from fedexp.algos.scaffold import Scaffold
from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.faults import Faults
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.core.component import Component
from fedexp.errors import ClientError
from fedexp.execute.auto import AutoExecutor
from fedexp.execute.base import Blueprint, SerialExecutor
from fedexp.execute.processes import ProcessExecutor
from fedexp.server.sampler import ClientDropouts
from fedexp.testing import CLIENTS, card, executors_agree, play, trial, trial_after
from fedexp.testing.agreement import demand_equal
from tests.helpers import sampled


def blueprint() -> Blueprint:
    """Any will do: what is tested brings its own."""
    found: list[Blueprint] = []

    def catch(given):
        found.append(given)
        return AutoExecutor(given)

    trial_after({}, rounds=0, executor=catch)
    return found[0]


SIZES = (1, 2, 5)  # workers


class Pools:
    """The pool that was used last, for all tests that follow with as many workers: to start one takes seconds."""

    def __init__(self):
        self.size, self.pool = 0, None

    def of(self, size):
        if size != self.size:
            self.close()
            self.size, self.pool = size, ProcessExecutor(blueprint(), workers=size)
        return self.pool

    def close(self):
        if self.pool is not None:
            self.pool.close()
        self.size, self.pool = 0, None


@pytest.fixture(scope="module")
def pools():
    made = Pools()
    yield made
    made.close()


@pytest.fixture
def pool(request, pools):
    return pools.of(request.param)


@dataclass(frozen=True, kw_only=True)
class Fails(Component):
    """Some clients fail in one way, others in another."""

    spoilt: tuple[int, ...] = (4,)

    def loss(self, step):
        if step.info.client == 1:
            raise LookupError("planned")
        if step.info.client == 3 and step.frame.rng_path[0] == 1:
            time.sleep(600)

    def uplink(self, weights, local):
        return {k: v * float("nan") for k, v in weights.items()} if local.client in self.spoilt else weights


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_faults_and_mishaps_are_the_same_everywhere(pool, tmp_path):
    """Errors, updates that are not finite, a time limit, dropouts and stragglers; also in visits after the end."""
    found = []
    for name, executor in (("serial", SerialExecutor), ("pool", partial(using, pool))):
        engine = trial(
            {"fails": Fails(), "scaffold": Scaffold()}, tmp_path / name, executor=executor, fraction=1.0,
            faults=Faults("skip", 3.0), mishaps=ClientDropouts(2, dropout=0.2, stragglers=0.5, slow=0.5),
        )  # fmt: skip
        engine.run(card(engine))
        rows = [(tmp_path / name / file).read_text() for file in ("clients.csv", "ledger.csv")]
        found.append((engine.digests(), rows))
        failed = engine.measurement.train_once_more(range(CLIENTS))
        assert {c for c, r in failed.items() if r.error is not None} == {1, 4}
    assert found[0] == found[1]
    for words in ("LookupError: planned", "not finite", "not done after 3 s", "dropped out"):
        assert words in found[0][1][0]


def using(pool, given):
    pool.use(given)
    return pool


@dataclass(frozen=True, kw_only=True)
class FailsFast(Component):
    """In the second round clients fail at once, long before the server's test is over."""

    during: tuple[str, ...] = ("*",)

    def logits(self, z, step):
        if step.info is None:
            time.sleep(0.02 * len(z))  # its stretches are not equally long
        elif step.frame.rng_path[:1] == (1,):
            raise LookupError("planned")
        return z


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_a_round_is_kept_if_clients_of_the_next_fail_before_it_is_written_down(pool, tmp_path):
    engine = trial({"fails": FailsFast()}, tmp_path, executor=partial(using, pool), fraction=1.0)
    with pytest.raises(ClientError, match=r"round 2, client .*planned"):
        engine.run(card(engine))
    again = trial({}, tmp_path)
    assert (again.progress.state.round, [r["round"] for r in again.records]) == (1, [1])


@pytest.mark.parametrize("pool", [2], indirect=True)
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_components_own_error_carries_its_traceback_from_a_worker(pool, policy):
    if policy == "skip":
        assert play({"fails": Fails()}, rounds=1, executor=partial(using, pool), faults=Faults("skip")).rounds == 1
        return
    with pytest.raises(ClientError, match=r"client 1, phase 'local': LookupError: planned$") as failure:
        play({"fails": Fails(spoilt=())}, rounds=1, fraction=1.0, executor=partial(using, pool))
    assert "in loss" in failure.value.details


@pytest.mark.parametrize(("pool", "algo"), sampled(SIZES, choices_of("algo"), step=len(SIZES)), indirect=["pool"])
def test_processes_give_the_numbers_of_one_process(pool, algo):
    """Each method with all numbers of workers if --slow is given, else with one of them."""
    config = composed([f"algo={algo}"])
    executors_agree({key: make(node) for key, node in config["algo"].items()}, pool)


@pytest.mark.parametrize("pool", [2], indirect=True)
@pytest.mark.parametrize("algo", ["map", "fedgen"])  # stacked, and not
def test_processes_stack_clients_as_one_process_does(pool, algo):
    components = {key: make(node) for key, node in composed([f"algo={algo}"])["algo"].items()}
    two = {"loop": partial(BatchedLoop, group=2), "group": 2, "fraction": 1.0}
    here, there = (play(components, executor=e, **two) for e in (SerialExecutor, partial(using, pool)))
    demand_equal(here, there, "another executor")
