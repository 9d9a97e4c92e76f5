"""Run settings as yaml, each with its documentation beside it: for ``conf/config.yaml`` and for the help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from fedexp.config.settings import Settings
from fedexp.errors import ConfigError

BEGIN = "# Run settings, declared in fedexp/config/settings.py and written here by `python -m fedexp.config`."
END = "# End of the run settings."
COLUMN = 22  # where documentation begins


def documented(values: Mapping[str, Any] | None = None) -> str:
    """The run settings with these values, or with their defaults."""
    return "\n".join(_lines(Settings, asdict(Settings()) if values is None else values, ""))


def _lines(settings: Any, values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for each in fields(settings):
        value = values[each.name]
        inside = isinstance(value, Mapping)
        head = f"{indent}{each.name}:" if inside else f"{indent}{each.name}: {_scalar(value)}"
        yield f"{head:<{COLUMN}}  # {_choices(settings).get(each.name, '')}{each.metadata['doc']}"
        if inside:
            yield from _lines(each.default_factory, value, f"{indent}  ")


@cache
def _choices(settings: Any) -> dict[str, str]:
    """What settings can be chosen from, where that is a list of words."""
    hints = get_type_hints(settings)
    return {key: f"{' | '.join(get_args(hint))}: " for key, hint in hints.items() if get_origin(hint) is Literal}


def _scalar(value: Any) -> str:
    return str(yaml.safe_dump(value, width=float("inf"), allow_unicode=True)).partition("\n")[0]


def rewritten(text: str) -> str:
    """The text of a configuration file with the run settings as they are declared now.

    Raises:
        ConfigError: If the file does not say where they belong.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"The file needs the two lines between which run settings are written:\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{documented()}\n{END}{after}"


def write(path: Path) -> bool:
    """Writes the run settings into a configuration file; whether that has changed it."""
    old = path.read_text()
    new = rewritten(old)
    if new != old:
        path.write_text(new)
    return new != old
