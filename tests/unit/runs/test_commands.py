"""The commands that make runs."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from fedexp.config.compose import overrides_of
from fedexp.config.identity import run_path
from fedexp.runs.commands import commands_of
from fedexp.runs.directory import RunDir
from fedexp.runs.sweep_manifest import Manifest


@pytest.mark.parametrize("announced", [True, False])
def test_commands_throw_nothing_away(configured, announced):
    config = configured("seed=1", "force=true")
    rundir = RunDir(run_path(config))
    rundir.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    if announced:
        Manifest.of([(overrides_of(config), config)]).write()
    (command,) = commands_of(rundir.path.parent, [rundir.path])
    assert "seed=1" in command
    assert "force" not in command
