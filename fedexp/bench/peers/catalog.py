"""Which other frameworks can be timed, and what they need. Free of torch and of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path

from fedexp.bench.contest import Contestant
from fedexp.bench.workload import Workload
from fedexp.errors import ConfigError, FedexpError

ACCURACY_TOLERANCE = 0.1  # after equally many rounds; cohorts, batches and a framework's own choices differ


@dataclass(frozen=True)
class Peer:
    """Another framework.

    Attributes:
        adapter: The module in this folder; it has ``play``.
        packages: The distributions that it needs, each with the version it was tried with.
        python: The Python versions that these are for, from the first to before the second.
    """

    adapter: str
    packages: Mapping[str, str]
    python: tuple[tuple[int, int], tuple[int, int]]

    def obstacle(self) -> str | None:
        """Why it cannot be timed here, and what to do."""
        first, end = self.python
        if not first <= sys.version_info[:2] < end:
            have, need = (".".join(map(str, v)) for v in (sys.version_info[:2], first))
            return f"needs Python {need} or later, below {end[0]}.{end[1]}; this is {have}"
        if lacking := [f"{p}=={v}" for p, v in self.packages.items() if not _installed(p)]:
            return f"needs {', '.join(lacking)}, which is not installed: pip install {' '.join(lacking)}"
        return None


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


PEERS: Mapping[str, Peer] = {
    "flower": Peer("flower", {"flwr": "1.41.0", "ray": "2.60.0"}, ((3, 11), (4, 0))),
    "fluke": Peer("fluke", {"fluke-fl": "0.8.1"}, ((3, 10), (4, 0))),
    "pfl": Peer("pfl_research", {"pfl": "0.6.0"}, ((3, 10), (3, 13))),
}


def contestants(names: Sequence[str], folder: Path, workload: Workload) -> list[Contestant]:
    """Those that play a workload.

    Raises:
        ConfigError: If the workload has a method that they do not have.
    """
    if names and workload.algo != "fedavg":
        raise ConfigError(f"--peers play FedAvg, and {workload.title} is another method: leave that workload out.")
    return [Contestant(name, play, (name, folder, workload)) for name in names]


def play(connection: Connection, name: str, folder: Path, workload: Workload) -> None:
    """A contestant's process: a framework that plays rounds when it is asked to."""
    import_module(f"fedexp.bench.peers.{PEERS[name].adapter}").play(connection, folder, workload)


def check(base: Contestant, peers: Sequence[Contestant], workload: Workload) -> None:
    """Whether peers did the same work as the raw loop.

    Raises:
        FedexpError: If one took another number of steps, or did not learn as the raw loop did.
    """
    for peer in peers:
        for problem in _differences(base, peer, workload):
            raise FedexpError(f"{peer.name} did not do the same work: {problem}")


def _differences(base: Contestant, peer: Contestant, workload: Workload) -> Iterator[str]:
    if wrong := [lap.steps for lap in peer.laps if lap.steps != workload.steps]:
        yield f"it took {wrong[0]} steps in a round that has {workload.steps}"
    rounds = max(peer.learned)
    ours, theirs = base.learned[rounds], peer.learned[rounds]
    if abs(ours - theirs) > ACCURACY_TOLERANCE:
        yield f"its accuracy is {theirs:.3f} after {rounds} rounds, the raw loop's {ours:.3f}"
