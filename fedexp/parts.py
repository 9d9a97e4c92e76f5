"""The parts of a run that can be made and checked before its data are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedexp.client.batched.loop import BatchedLoop
from fedexp.client.loops import available, first_device
from fedexp.client.optim import OptimizerFactory, configured
from fedexp.client.precision import FULL
from fedexp.client.precision import problems as precision_problems
from fedexp.config import targets
from fedexp.config.compose import Config, checked
from fedexp.config.make import make
from fedexp.core.component import Component
from fedexp.data.source import Source
from fedexp.errors import ConfigError
from fedexp.evaluate.protocol import EvaluationProtocol
from fedexp.probes.base import Probe, overrides

MADE_EARLY = ("data", "partition", "optim", "schedule", "evaluate")  # made in no time
CHECKED_EARLY = (*MADE_EARLY, *targets.KEYED, "loop", "limit")  # what ``parts`` looks at


def parts(config: Config) -> tuple[Source, dict[str, Component], EvaluationProtocol]:
    """The data set, not loaded, the components and the protocol, after checking all that can be checked without data.

    Raises:
        ConfigError: With every problem found.
    """
    checked(config)
    problems: list[str] = []
    if not available(config["loop"]["accelerator"]):
        problems.append(f"loop.accelerator={config['loop']['accelerator']} is not on this machine. Use auto or cpu.")
    made: dict[str, Any] = {}
    keyed = {f"{group}.{k}": node for group in targets.KEYED for k, node in config.get(group, {}).items()}
    nodes = {**keyed, **{k: config[k] for k in MADE_EARLY}}
    for where, node in nodes.items():
        try:
            made[where] = make_optimizer(node) if where == "optim" else make(node)
        except ConfigError as error:
            problems.append(str(error))
        except (TypeError, ValueError) as error:
            problems.append(f"{where}: {node['_target_']} does not take these settings ({error}).")
    if not problems:
        loop = {"precision": FULL, **config["loop"]}
        problems += precision_problems(loop["precision"], first_device(loop["accelerator"]), made["optim"])
    if _batched(config):
        problems += _needing_single_clients(config, {k: p for k, p in made.items() if k.startswith("probe.")})
    if problems:
        raise ConfigError("\n".join(problems))
    return made["data"], {key: made[f"algo.{key}"] for key in config["algo"]}, made["evaluate"]


def _batched(config: Config) -> bool:
    """Whether many clients are trained at once."""
    loop = targets.load(config["loop"]["_target_"])
    return isinstance(loop, type) and issubclass(loop, BatchedLoop)


def _needing_single_clients(config: Config, probes: Mapping[str, Probe]) -> Iterator[str]:
    """What cannot be had where many clients are trained at once."""
    if config["limit"] is not None:
        yield "limit is the time of one client, and loop=batched trains many at once. Use limit=null or loop=fabric."
    for key in (key for key, probe in probes.items() if overrides(probe, "step")):
        yield f"{key} looks at single steps, which loop=batched takes for many clients at once. Use loop=fabric."


def make_optimizer(node: Mapping[str, Any]) -> OptimizerFactory:
    """What makes the clients' optimizers.

    Raises:
        ConfigError: If it cannot be imported, or does not take the settings.
    """
    named = make({**node, "_partial_": True})
    return configured(named.func, named.keywords)
