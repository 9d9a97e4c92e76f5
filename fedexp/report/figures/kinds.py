"""The kinds of figures, and how one is asked for by words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError
from fedexp.report.figures.classes import classes
from fedexp.report.figures.clients import fairness, gains
from fedexp.report.figures.cost import cost
from fedexp.report.figures.curves import curves
from fedexp.report.figures.figure import Figure
from fedexp.report.figures.observed import observed
from fedexp.report.figures.parameters import heatmap, parameter
from fedexp.report.figures.partition import partition
from fedexp.report.figures.plane import plane
from fedexp.report.figures.proxies import proxies
from fedexp.report.figures.relativity import relativity
from fedexp.report.figures.spectrum import spectrum
from fedexp.report.figures.subsets import subsets
from fedexp.report.figures.zigzag import zigzag
from fedexp.report.load import Runs


@dataclass(frozen=True)
class Kind:
    """A kind of figure; its options are the keyword arguments of the function that makes it."""

    make: Callable[..., Figure]

    @property
    def about(self) -> str:
        """One line."""
        return (self.make.__doc__ or "").partition("\n")[0]

    @cached_property
    def options(self) -> Mapping[str, Parameter]:
        """By name."""
        return {name: option for name, option in signature(self.make).parameters.items() if name != "runs"}

    def __call__(self, runs: Runs, options: Mapping[str, Any]) -> Figure:
        """Makes the figure; options that are lists may be texts with commas.

        Raises:
            ConfigError: If an option is not known or missing.
        """
        for name in options:
            if name not in self.options:
                raise ConfigError(
                    f"{name}: {self.make.__name__} has no such option. {nearest(name, list(self.options))}"
                )
        lacking = [n for n, option in self.options.items() if option.default is Parameter.empty and n not in options]
        if lacking:
            raise ConfigError(
                f"{self.make.__name__} needs {' and '.join(f'{name}=SETTING' for name in lacking)}. The runs differ in "
                f"{', '.join(runs.done.differing(run.name for run in runs.done.found)) or 'nothing'}."
            )
        return self.make(runs, **{name: self._value(name, value) for name, value in options.items()})

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and "Sequence" in str(self.options[name].annotation):
            return tuple(part for part in value.split(",") if part)
        return value


OF_RUNS = (curves, plane, gains, fairness, classes, partition, parameter, heatmap, zigzag, subsets)
OF_PROBES = (observed, proxies, spectrum, relativity, cost)
KINDS: Mapping[str, Kind] = {make.__name__: Kind(make) for make in (*OF_RUNS, *OF_PROBES)}


def kind(name: str) -> Kind:
    """A kind by its name.

    Raises:
        ConfigError: If there is none; with the nearest name.
    """
    if name not in KINDS:
        raise ConfigError(f"{name}: there is no such kind of figure. {nearest(name, list(KINDS))}")
    return KINDS[name]
