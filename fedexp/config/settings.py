"""The run settings: of each its type and range, its default, and a line of documentation, declared once.

From here come the checks of ``schema.py``, the help of the command line, the run settings in ``conf/config.yaml``
(which ``python -m fedexp.config`` writes), and the groups of settings that clients, server and engine are handed.
What has a ``_target_`` (algo, data, model and so on) is declared by the signature of that target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal

from fedexp.core.ranges import Count, CountOr0, Epochs, FolderName, Positive, Seconds, Share, ShareAbove0, Text


def setting(default: Any, doc: str, *, changes_numbers: bool = True, as_before: Any = ...) -> Any:
    """A field with its default and documentation.

    What changes no number of a run is not part of the run's id. Of a setting that is new, ``as_before`` is the value
    with which runs are what they were without it: with this value they also keep their ids.
    """
    return field(default=default, metadata={"doc": doc, "changes_numbers": changes_numbers, "as_before": as_before})


def group(settings: type) -> Any:
    """A field that is a group of settings, documented by the docstring of its class."""
    return field(default_factory=settings, metadata={"doc": settings.__doc__})


@dataclass(frozen=True)
class Cohort:
    """Who takes part."""

    clients: Count = setting(20, "clients in the federation (K); the papers have 100")
    fraction: ShareAbove0 = setting(0.2, "share of them in a round (Q); MAP: 0.2")
    seed: int | None = setting(None, "draws the cohorts; null follows the run's seed")


@dataclass(frozen=True)
class LocalSettings:
    """A client's training in one round."""

    epochs: Epochs = setting(5, "E; MAP: 5 on Fashion-MNIST, 10 on CIFAR-10")
    batch_size: Count = setting(64, "B; MAP and FedRS: 64")
    clip: Positive | None = setting(
        100, "largest norm of a gradient; MAP, FedRS: 100, FedGELA: 20, FedReMa: 10; null: any"
    )


@dataclass(frozen=True, kw_only=True)
class MishapSettings:
    """Simulated, drawn for each client and round."""

    dropout: Share = setting(0.0, "probability that a client gets the model and never answers")
    stragglers: Share = setting(0.0, "probability that it does only a part of its local steps")
    slow: Share = setting(0.5, "the part of its local steps that a straggler does")


@dataclass(frozen=True)
class Every:
    """How often, in rounds."""

    evaluate: Count = setting(1, "rounds between tests")
    checkpoint: Count = setting(10, "rounds between checkpoints", changes_numbers=False)


@dataclass(frozen=True)
class Settings:
    """All run settings."""

    seed: int = setting(0, "partition, cohorts, batches, initial weights: everything")
    rounds: Count = setting(50, "communication rounds (T)")
    cohort: Cohort = group(Cohort)
    local: LocalSettings = group(LocalSettings)
    mishaps: MishapSettings = group(MishapSettings)
    faults: Literal["raise", "skip"] = setting(
        "raise", "a client that fails stops the run, or is left out of the round"
    )
    limit: Seconds | None = setting(None, "seconds that one client's round may take, else it has failed")
    weighting: Literal["uniform", "samples"] = setting(
        "uniform", "how clients count; uniform: MAP, FedRS; samples: FedMR, FedGELA, FedReMa"
    )
    pool: Literal["train", "all"] = setting(
        "train", "deal out the training set, or training and test set together (FedReMa)"
    )
    public: CountOr0 = setting(
        0, "samples of the server's own, taken out of the test set by the seed; for methods that distil", as_before=0
    )
    centralized: bool = setting(
        False, "true: deal out as usual, then one client gets everything, tests too", as_before=False
    )
    every: Every = group(Every)
    out: Text = setting("multirun", "root of the run directories", changes_numbers=False)
    name: FolderName = setting("main", "folder under it, and the group in a tracker", changes_numbers=False)
    plan: bool = setting(False, "true: print what would run, train nothing", changes_numbers=False)
    force: bool = setting(False, "true: run again even if the run is finished", changes_numbers=False)
    store: Literal["auto", "memory", "disk"] = setting(
        "auto", "clients' slots; auto: on disk if they fill a quarter of the memory", changes_numbers=False
    )
    keep: Literal["model", "all"] = setting(
        "model", "after the run, keep the server's model, or client slots too, for more rounds", changes_numbers=False
    )


def leaves(settings: type = Settings, path: str = "") -> Iterator[tuple[str, Field[Any]]]:
    """Every single setting with its full key, as in ``cohort.clients``."""
    for each in fields(settings):
        if isinstance(each.default_factory, type) and is_dataclass(each.default_factory):
            yield from leaves(each.default_factory, f"{path}{each.name}.")
        else:
            yield f"{path}{each.name}", each


def as_before() -> dict[str, Any]:
    """The settings that were added later, with the values that leave runs as they were."""
    return {key: each.metadata["as_before"] for key, each in leaves() if each.metadata["as_before"] is not ...}


def without_influence() -> tuple[str, ...]:
    """The keys of the settings that change no number of a run."""
    return tuple(key for key, each in leaves() if not each.metadata["changes_numbers"])
