"""What ``python -m fedexp --help`` prints: groups with their choices, settings with defaults and documentation."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

import yaml

from fedexp.config.compose import composed
from fedexp.config.documented import documented
from fedexp.config.hydra_loader import choices_of, loader
from fedexp.config.sources import Sources
from fedexp.config.targets import KINDS

HELP = Template("""\
fedexp: federated learning experiments when clients own only some of the classes.

== Usage ==
python -m fedexp [group=choice ...] [key=value ...]       one run
python -m fedexp -m key=value,value ...                   a sweep over all combinations
python -m fedexp plan=true ...                            what would run, without training

== Groups (group=choice) ==
$groups

== Run settings (key=value) ==
$settings

== Settings of the chosen groups (group.key=value) ==
$chosen

The files behind the groups, with comments and sources, are in conf/.
Hydra's own options: --hydra-help. Shell completion: fedexp -sc install=bash
Other commands: python -m fedexp.algos, fedexp.data, fedexp.runs, fedexp.reproduce, fedexp.report, fedexp.track,
fedexp.dashboard, fedexp.bench, fedexp.doctor; each has --help.""")


def help_text(overrides: Sequence[str], sources: Sources) -> str:
    """The help, with the values that the overrides give.

    Raises:
        ConfigError: If they cannot be composed.
    """
    config = composed(overrides, sources)
    chosen = {group: config[group] for group in config if group in KINDS}
    groups = [group for group in loader(sources).list_groups("") if group != "hydra"]
    return HELP.substitute(
        groups="\n".join(f"{group}: {', '.join(choices_of(group, sources))}" for group in groups),
        settings=documented(config),
        chosen=yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).strip(),
    )
