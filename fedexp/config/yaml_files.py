"""Reading YAML that others have written: neither deep, nor larger than it looks.

Small files can stand for very large values: an alias repeats what it names, and may do so within others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml
from omegaconf.errors import OmegaConfBaseException

from fedexp.errors import ConfigError

LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
DEEPEST = 50  # lists and groups in each other
MAX_VALUES = 100_000  # values of a file, counted as often as aliases repeat them
ERRORS = (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, RecursionError, OSError)  # of a bad file


def refuse_excess(text: str | bytes, *, aliases: bool = True) -> None:
    """Reads YAML without making anything of it.

    Raises:
        ValueError: If it is nested too deep, stands for too many values, or contains itself; or if
            it has aliases and is to have none.
        yaml.YAMLError: If it is not YAML.
    """
    sizes: dict[str, int] = {}  # of what has an anchor
    around: list[tuple[str, int]] = []  # groups and lists that are not complete: anchor, values before
    count = 0
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = around.pop()
            sizes[anchor] = count - before
        elif isinstance(event, yaml.AliasEvent):
            count += _repeated(event.anchor, sizes if aliases else None)
        elif isinstance(event, yaml.NodeEvent):
            around.append((event.anchor, count))
            count += 1
            if isinstance(event, yaml.ScalarEvent):
                sizes[around.pop()[0]] = 1
        if len(around) > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} times")
        if count > MAX_VALUES:
            raise ValueError(f"it stands for more than {MAX_VALUES:,} values")


def _repeated(anchor: str, sizes: Mapping[str, int] | None) -> int:
    """How many values an alias stands for."""
    if sizes is None:
        raise ValueError(f"it has an alias, *{anchor}")
    if anchor not in sizes:
        raise ValueError(f"*{anchor} contains itself")
    return sizes[anchor]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """In the block, a configuration file is read, if it is one that can be.

    Raises:
        ConfigError: If not; it names the file and the line.
    """
    try:
        refuse_excess(path.read_bytes())
        yield
    except ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark else ""
        problem = (getattr(error, "problem", None) or str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path}{line} is not valid yaml ({problem}). Mend it.") from error
