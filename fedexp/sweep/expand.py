"""What the arguments of a sweep stand for: one list of overrides for each of its jobs. Free of torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from decimal import Decimal

from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from fedexp.config.explain import explain
from fedexp.config.hydra_loader import choices_of, parsed_overrides
from fedexp.config.sources import Sources
from fedexp.errors import ConfigError

MOST_JOBS = 100_000


def parsed(lines: Sequence[str]) -> list[Override]:
    """Overrides as Hydra understands them.

    Raises:
        ConfigError: If one cannot be read.
    """
    try:
        return parsed_overrides(lines)
    except HydraException as cause:
        raise ConfigError(explain(cause)) from cause


def combinations(overrides: Sequence[Override], sources: Sources) -> list[list[str]]:
    """The overrides of each job: all combinations of the values that are swept over.

    Raises:
        ConfigError: If there are none, or too many.
    """
    axes = [_values(override, sources) for override in overrides]
    if (count := math.prod(map(len, axes))) > MOST_JOBS:
        raise ConfigError(f"The sweep has {count:,} jobs; {MOST_JOBS:,} are the most. Divide it.")
    return [list(values) for values in itertools.product(*axes)]


def _values(override: Override, sources: Sources) -> list[str]:
    """One override for each value of a swept key."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    value, key = override.value(), override.get_key_element()
    if isinstance(value, Glob):
        found = value.filter(choices_of(override.key_or_group, sources))
    else:
        if isinstance(value, RangeSweep):
            _check_range(value, str(override.input_line))
        found = list(override.sweep_string_iterator())
    if not found:
        raise ConfigError(f"{override.input_line} sweeps over nothing: it has no value. Give one or more.")
    return [f"{key}={v}" for v in found]


def _check_range(value: RangeSweep, line: str) -> None:
    start, stop, step = (Decimal(v or 0) for v in (value.start, value.stop, value.step))
    if not (step and all(v.is_finite() for v in (start, stop, step))):
        raise ConfigError(f"{line}: a range needs finite numbers and a step other than 0.")
    if (stop - start) / step > MOST_JOBS:
        raise ConfigError(f"{line} has too many values; {MOST_JOBS:,} are the most. Divide it.")
