"""All probes observe every method, and no number of it depends on them."""

from __future__ import annotations

import pytest

from fedexp.config.compose import composed
from fedexp.config.hydra_loader import choices_of
from fedexp.parts import parts
from fedexp.probes.cost import CostProbe
from fedexp.testing import play
from tests.unit.probes.test_observing import ALL, Careless, measured


@pytest.mark.parametrize("name", choices_of("algo"))
def test_no_number_of_a_method_depends_on_probes(name):
    components = parts(composed([f"algo={name}"]))[1]
    probes = {**ALL, "careless": Careless(), "cost": CostProbe()}
    plain, watched = (play(components, rounds=2, norm=True, probes=chosen) for chosen in ({}, probes))
    assert plain.digests() == watched.digests()
    assert [measured(record) for record in plain.records] == [measured(record) for record in watched.records]
    assert watched.progress.seconds["probe"] > 0
