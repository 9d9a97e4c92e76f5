"""Methods that add a loss, from their files: with restricted softmax, with control variates, with prototypes."""

from __future__ import annotations

import numpy as np
import pytest

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.config.compose import composed
from fedexp.config.make import make
from fedexp.core.state import digest
from fedexp.testing import play

METHODS = ["fedprox", "fedmmd", "moon", "fedproc", "fedlc", "fedaws", "fedprox_proto", "moon_proto"]


def components_of(name):
    return {key: make(node) for key, node in composed([f"algo={name}"])["algo"].items()}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_composes_with_restricted_softmax_and_with_control_variates(name):
    """Both act: without either of them, and without the method, the model is another one."""
    method, extra = components_of(name), {"rs": RestrictedSoftmax(mode="count_max"), "scaffold": Scaffold()}
    every = {**method, **extra}
    lacking = [{k: v for k, v in every.items() if k != left_out} for left_out in extra]
    whole, *others = (play(components, rounds=2) for components in (every, *lacking, extra))
    names = others[-1].progress.state.model
    models = [{n: engine.progress.state.model[n] for n in names} for engine in (whole, *others)]
    assert len({digest({"": m}) for m in models}) == 4
    assert all(np.isfinite(v) for v in whole.records[-1]["terms"].values())


@pytest.mark.parametrize(("name", "base"), [("fedprox_proto", "fedprox"), ("moon_proto", "moon")])
def test_with_prototypes_a_method_has_the_margin_and_nothing_else_of_fedmr(name, base):
    both, alone, margin = components_of(name), components_of(base), components_of("fedmr")
    assert both.keys() == alone.keys() | {"means", "mr"}
    assert all(both[key] == component for key, component in alone.items())
    assert (both["mr"].intra, both["mr"].inter) == (0.0, margin["mr"].inter)
    assert both["means"] == margin["means"]
    terms = play(both, rounds=2).records[-1]["terms"]
    assert "local/mr.inter" in terms
    assert "local/mr.intra" not in terms
