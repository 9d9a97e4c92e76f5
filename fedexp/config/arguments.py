"""A command line taken apart: overrides, and the options that say where configurations are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from fedexp import __version__
from fedexp.config import targets
from fedexp.config.sources import Sources, conf_dir
from fedexp.config.suggest import nearest
from fedexp.errors import ConfigError

VERSION = f"fedexp {__version__}"


@dataclass(frozen=True)
class Arguments:
    """What a command line asks for.

    Attributes:
        overrides: What is to be set, ``key=value``.
        sources: The configuration files.
        sweep: Whether ``-m`` is given.
        question: Whether Hydra is asked for something (help, a configuration, completion), and nothing is to be run.
        completion: Whether it is the shell that asks.
    """

    overrides: list[str]
    sources: Sources
    sweep: bool = False
    question: bool = False
    completion: bool = False


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Reads a command line as Hydra does.

    Raises:
        ConfigError: If an option is not known, or names what is not there.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    given = parser.parse_intermixed_args(list(arguments))
    if given.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun is not supported: a run is continued by the same command.")
    asked = {name: getattr(given, name) for name in ("run", "multirun", "cfg", "info", "shell_completion")}
    if sum(map(bool, asked.values())) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name, value in asked.items() if value)
        raise ConfigError(f"{names} exclude each other. Give one of them.")
    if given.resolve and not given.cfg and not given.help:
        raise ConfigError("--resolve needs --cfg or --help.")
    if given.package and not given.cfg:
        raise ConfigError("--package needs --cfg.")
    return Arguments(
        overrides=given.overrides,
        sources=sources(given.config_dir, given.config_path, given.config_name),
        sweep=given.multirun,
        question=any([given.help, given.hydra_help, given.cfg, given.info, given.shell_completion]),
        completion=given.shell_completion,
    )


def sources(extra: str | Path | None = None, conf: str | Path | None = None, name: str | None = None) -> Sources:
    """The folders of configuration files, of which code may be named in them too.

    Raises:
        ConfigError: If one is not there, or the primary configuration is in none.
    """
    found = Sources(
        conf=_folder("--config-path", conf) if conf else conf_dir(),
        extra=_folder("--config-dir", extra) if extra else None,
        name=(name or Sources.name).removesuffix(".yaml"),
    )
    if not any((folder / f"{found.name}.yaml").is_file() for folder in found.folders()):
        near = nearest(found.name, sorted(p.stem for folder in found.folders() for p in folder.glob("*.yaml")))
        where = " or ".join(map(str, found.folders()))
        raise ConfigError(f"--config-name {found.name}: there is no {found.name}.yaml in {where}. {near}")
    if found.extra and (hidden := _hidden(found.conf, found.extra)):
        raise ConfigError(
            f"--config-dir {extra}: {hidden} would not be read, as {found.conf} has a file of that name. Rename it."
        )
    return found


def _hidden(conf: Path, extra: Path) -> Path | None:
    """A file of the second folder that the first has too."""
    if extra.samefile(conf):
        return None
    names = (path.relative_to(extra) for path in sorted(extra.rglob("*.yaml")))
    return next((name for name in names if (conf / name).is_file()), None)


def _folder(option: str, path: str | Path) -> Path:
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"{option} {path}: there is no such folder. Name one with configuration files.")
    targets.allow(folder)
    return folder


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}. Options: --help.")
