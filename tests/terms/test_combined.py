"""Every method, from its files, with restricted softmax and control variates; and some with prototypes."""

from __future__ import annotations

import numpy as np
import pytest

from fedexp.algos.fedrs import RestrictedSoftmax
from fedexp.algos.scaffold import Scaffold
from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.config.make import make
from fedexp.errors import PlanError
from fedexp.testing import play, trial_after

EVERY_TIME = ["fedprox", "fedmmd", "moon", "fedproc", "fedlc", "fedaws", "fedprox_proto", "moon_proto"]
METHODS = [
    pytest.param(name, marks=[] if name in EVERY_TIME else pytest.mark.slow) for name in sorted(choices_of("algo"))
]


REFUSED = {
    "fedrs_noise": r"component 'noise' puts noise on the model only, and extra_scaffold\.dc would be sent without"
}


def components_of(name):
    return {key: make(node) for key, node in composed([f"algo={name}"])["algo"].items()}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_composes_with_restricted_softmax_and_with_control_variates(name):
    """Or is refused with a sentence. All of them act: if one is left out, training goes another way."""
    method = components_of(name)
    extra = {"extra_rs": RestrictedSoftmax(mode="count_max"), "extra_scaffold": Scaffold()}
    every = {**method, **extra}
    if name in REFUSED:
        with pytest.raises(PlanError, match=REFUSED[name]):
            trial_after(every, rounds=0)
        return
    whole = losses(every)
    assert all(np.isfinite(v) for v in whole.values())
    for left_out in extra:
        assert losses({k: v for k, v in every.items() if k != left_out}) != whole
    assert (losses(extra) != whole) is bool(method)


def losses(components):
    """The loss terms of the third round; a momentum that begins at zero acts in the second server step."""
    return play(components, rounds=3, norm=True, fraction=1.0).records[-1]["terms"]


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
