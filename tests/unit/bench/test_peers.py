"""Other frameworks are left out with a reason, are held to the raw loop's work, and play when their package is here."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from fedexp.bench.__main__ import main
from fedexp.bench.contest import Contestant
from fedexp.bench.peers.catalog import PEERS, Peer, check, contestants
from fedexp.bench.peers.pace import Enough, Pace
from fedexp.bench.raw import RawTask
from fedexp.bench.workload import WORKLOADS
from fedexp.build import build
from fedexp.config.compose import composed
from fedexp.errors import ConfigError, FedexpError
from tests.unit.bench.test_bench import lap

W0 = WORKLOADS["W0"]
ANY = ((3, 0), (4, 0))


# ---------------------------------------------------------------- who plays
def test_a_peer_without_its_package_or_python_says_what_it_needs(monkeypatch):
    assert Peer("x", {"no-such-thing": "1.2"}, ANY).obstacle() == (
        "needs no-such-thing==1.2, which is not installed: pip install no-such-thing==1.2"
    )
    assert Peer("x", {"torch": "2.6"}, ANY).obstacle() is None
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    assert Peer("x", {}, ((3, 14), (4, 0))).obstacle() == "needs Python 3.14 or later, below 4.0; this is 3.11"
    assert Peer("x", {}, ((3, 10), (3, 11))).obstacle() == "needs Python 3.10 or later, below 3.11; this is 3.11"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["W0", "--peers", "flowr"], "Did you mean 'flower'"),
        (["W0", "--peers", "--device", "cuda"], "--peers are timed on the CPU"),
    ],
)
def test_what_peers_cannot_do_is_answered(asked, said, capsys):
    assert main(asked) == 2
    assert said in capsys.readouterr().err


def test_peers_play_fedavg_only(tmp_path):
    assert [c.name for c in contestants(list(PEERS), tmp_path, W0)] == list(PEERS)
    with pytest.raises(ConfigError, match="--peers play FedAvg"):
        contestants(["fluke"], tmp_path, WORKLOADS["W6"])


# ---------------------------------------------------------------- the same work
def contestant(name, steps, learned):
    made = Contestant(name, print, (), learned=learned)
    made.laps.append(replace(lap(1.0), steps=steps))
    return made


def test_a_peer_is_held_to_steps_and_accuracy_after_equally_many_rounds():
    raw = contestant("raw", W0.steps, {2: 0.3, 4: 0.6, 6: 0.8})
    check(raw, [contestant("fair", W0.steps, {2: 0.1, 4: 0.55})], W0)
    with pytest.raises(FedexpError, match=f"lazy did not do the same work: it took 9 steps .* has {W0.steps}"):
        check(raw, [contestant("lazy", 9, {4: 0.55})], W0)
    with pytest.raises(FedexpError, match=r"its accuracy is 0.450 after 4 rounds, the raw loop's 0.600"):
        check(raw, [contestant("wrong", W0.steps, {2: 0.3, 4: 0.45})], W0)


class Ends:
    """Both ends of a connection: asks for rounds, and keeps the answers."""

    def __init__(self, *asked):
        self._asked, self.said = iter(asked), []

    def recv(self):
        return next(self._asked)

    def send(self, answer):
        self.said.append(answer)


def test_a_framework_plays_as_many_rounds_as_are_asked_for():
    ends = Ends(2, 1, 0)
    pace = Pace(ends)
    pace.begin()
    pace.ended(5, 0.1)
    assert ends.said == [{"ready": True}]
    pace.ended(5, 0.2)
    with pytest.raises(Enough):
        pace.ended(7, 0.3)
    assert [(a["steps"], a["accuracy"]) for a in ends.said[1:]] == [(10, 0.2), (7, 0.3)]
    assert all(a["wall"] >= 0 for a in ends.said[1:])


# ---------------------------------------------------------------- the frameworks themselves
@pytest.mark.parametrize("name", list(PEERS))
def test_a_peer_takes_the_steps_of_the_workload_and_learns(name, tmp_path):
    if obstacle := PEERS[name].obstacle():
        pytest.skip(f"{name} {obstacle}")
    W0.deal(tmp_path)
    RawTask.of(build(composed(W0.overrides(tmp_path)))).save(tmp_path)
    (peer,) = contestants([name], tmp_path, W0)
    with peer:
        first, *_, last = (peer.lap(3) for _ in range(4))
    assert first.steps == last.steps == W0.steps
    assert last.accuracy > first.accuracy
    assert last.wall > 0
