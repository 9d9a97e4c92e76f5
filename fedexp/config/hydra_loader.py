"""Hydra's composing, made quick enough for thousands of jobs: what only depends on the choice of files is done once.

Most of what Hydra does for a job is reading files and merging them in the order of the defaults lists. The result
depends on the overrides that choose files (``algo=map``) alone; single settings (``seed=3``) are put in afterwards.
Jobs that choose the same files therefore begin with copies of the same configuration, and Hydra's own code goes on
from there.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal import hydra as hydra_main
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedexp.config.hydra_settings import refuse_changes
from fedexp.config.sources import Sources
from fedexp.config.targets import SEVERAL
from fedexp.config.yaml_files import reading
from fedexp.errors import ConfigError
from fedexp.system import signals

BASE = "1.3"  # of Hydra's behaviour
HOW_TO_WRITE = """Write key=value, with quotes around a value with special characters: "key='a~b'"."""


class Loader(ConfigLoaderImpl):
    """Hydra's loader, which remembers what it has read and merged. Signals wait while it composes."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        version.setbase(BASE)
        setup_globals()
        JobRuntime.instance().set("name", "fedexp")
        super().__init__(config_search_path)
        self._files: dict[str, ConfigResult | None] = {}
        self._groups: dict[str, bool] = {}
        self._elsewhere: dict[str | None, bool] = {}
        self._merged: dict[tuple[Any, ...], _Merged] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process composes one job, with Hydra's own loader."""
        return _plain_loader, (self.config_search_path, self.repository)

    def load_configuration(self, *args: Any, **kwargs: Any) -> DictConfig:
        """Composes a configuration."""
        with signals.defer_signals():
            return super().load_configuration(*args, **kwargs)

    def job(self, config_name: str, overrides: Sequence[str]) -> tuple[DictConfig, Mapping[str, str]]:
        """The configuration of one job without Hydra's own part, and the files it is made of."""
        with signals.defer_signals():
            parsed = parsed_overrides(overrides)
            if any(_is_hydras(o) for o in parsed) or self._searches_elsewhere(config_name, parsed):
                whole = self._load_configuration_impl(config_name, list(overrides), RunMode.RUN)
                return whole, whole.hydra.runtime.choices
            self.validate_sweep_overrides_legal(parsed, RunMode.RUN, from_shell=True)
            merged = self._with_files(config_name, parsed, RunMode.RUN)
            config = merged.job()
            self._apply_overrides_to_config([o for o in parsed if self._is_setting(o)], config)
            return config, merged.choices

    def _load_configuration_impl(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,  # noqa: FBT001, FBT002 - Hydra's signature
        validate_sweep_overrides: bool = True,  # noqa: FBT001, FBT002
    ) -> DictConfig:
        parsed = parsed_overrides(overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        of_jobs = _settings_of_swept_files(parsed)
        others = [o for o in parsed if o not in of_jobs]
        if self._searches_elsewhere(config_name, parsed):
            lines = [str(o.input_line) for o in others]
            config = super()._load_configuration_impl(config_name, lines, run_mode, from_shell)
            refuse_changes(config, config_name)
        else:
            settings = [o for o in others if self._is_setting(o)]
            config = self._with_files(config_name, parsed, run_mode).whole()
            self._apply_overrides_to_config([o for o in settings if not o.is_sweep_override()], config)
            if any(_is_hydras(o) for o in settings):
                refuse_changes(config, config_name)
        for override in of_jobs:
            with suppress(HydraException):  # these files lack it; whether those of a job have it, the job will say
                self._apply_overrides_to_config([override], config)
        _note(config, parsed)
        return config

    def _is_setting(self, override: Override) -> bool:
        """Whether an override puts in a single value, and does not choose files. Hydra's own rule."""
        if override.is_sweep_override():
            return True
        return isinstance(override.value(), dict) or not self._is_group(override.key_or_group)

    def _searches_elsewhere(self, config_name: str | None, overrides: Sequence[Override]) -> bool:
        """Whether ``hydra.searchpath`` adds folders, of which nothing is remembered."""
        if config_name not in self._elsewhere:
            primary = _read(self.repository, config_name) if config_name else None
            there = primary is not None and OmegaConf.select(primary.config, "hydra.searchpath")
            self._elsewhere[config_name] = bool(there)
        return self._elsewhere[config_name] or any(o.key_or_group == "hydra.searchpath" for o in overrides)

    def _is_group(self, key: str) -> bool:
        if key not in self._groups:
            self._groups[key] = self.repository.group_exists(key)
        return self._groups[key]

    def _with_files(self, config_name: str | None, overrides: Sequence[Override], run_mode: RunMode) -> _Merged:
        """The chosen files, merged, before any setting is put in."""
        choices = [o for o in overrides if not self._is_setting(o)]
        for choice in choices:
            _check_choice(choice)
        lines = [str(o.input_line) for o in choices]
        key = (config_name, *lines, run_mode)
        if key not in self._merged:
            config = super()._load_configuration_impl(config_name, lines, run_mode, validate_sweep_overrides=False)
            refuse_changes(config, config_name)
            self._merged[key] = _Merged.of(config)
        return self._merged[key]

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed = parsed_overrides(overrides)
        repository = _Remembering(self.repository, self._files)
        self._process_config_searchpath(config_name, parsed, repository)
        return parsed, repository

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: list[Override], repo: CachingConfigRepository
    ) -> None:
        primary = repo.load_config(config_name) if config_name else None
        given = [o.value() for o in parsed_overrides if o.get_key_element() == "hydra.searchpath"]
        named = [*given, OmegaConf.select(primary.config, "hydra.searchpath")] if primary else given
        for path in (p for paths in named if isinstance(paths, MutableSequence) for p in paths):
            folder = str(path).removeprefix("file://")
            if "://" in folder or not Path(folder).is_dir():  # pkg:// would be imported
                raise ConfigCompositionException(
                    f"hydra.searchpath: {path} is not a folder. Name one, as in file:///home/me/conf."
                )
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


def _is_hydras(override: Override) -> bool:
    """Whether an override is for Hydra itself: one of its settings, or all of them at once."""
    return override.key_or_group == "hydra" or bool(override.is_hydra_override())


def _settings_of_swept_files(overrides: Sequence[Override]) -> list[Override]:
    """What may be in the files of the jobs of a sweep only; of a single run nothing.

    A sweep begins with a configuration of none of its jobs. Which files a job has may depend on any group that is swept
    over: an experiment chooses data set and partition.
    """
    if not any(o.is_sweep_override() for o in overrides):
        return []
    return [o for o in overrides if "." in o.key_or_group and not (_is_hydras(o) or o.is_sweep_override())]


def _check_choice(override: Override) -> None:
    value = override.value()
    if override.is_delete() or isinstance(value, str):
        return
    if override.key_or_group in SEVERAL and isinstance(value, list) and all(isinstance(name, str) for name in value):
        return
    raise ConfigCompositionException(
        f"{override.input_line}: this is not the name of a file of {override.key_or_group}. Choose one, as algo=map; "
        "a file with a defaults list combines several, as conf/algo/scamap.yaml does."
    )


@dataclass(frozen=True)
class _Merged:
    """A configuration of which copies are wanted: as a whole, and without Hydra's part."""

    whole: Callable[[], DictConfig]
    job: Callable[[], DictConfig]
    choices: Mapping[str, str]

    @classmethod
    def of(cls, config: DictConfig) -> _Merged:
        own = OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"])
        OmegaConf.set_struct(own, True)  # noqa: FBT003 - as Hydra does
        return cls(_copies(config), _copies(own), dict(config.hydra.runtime.choices))


def _copies(config: DictConfig) -> Callable[[], DictConfig]:
    try:
        packed = pickle.dumps(config)
    except pickle.PicklingError:  # of a plugin that was imported twice
        return partial(copy.deepcopy, config)
    return partial(pickle.loads, packed)  # our own, and six times as fast as a deep copy


def _plain_loader(search_path: ConfigSearchPath, repository: Any) -> ConfigLoaderImpl:
    made = ConfigLoaderImpl.__new__(ConfigLoaderImpl)
    made.config_search_path, made.repository = search_path, repository
    return made


class _Remembering(CachingConfigRepository):
    """Reads each file once, however many configurations are composed."""

    def __init__(self, delegate: Any, files: dict[str, ConfigResult | None]) -> None:
        super().__init__(delegate)
        self._files = files

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._files = {}  # of other folders

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.cache:
            if config_path not in self._files:
                self._files[config_path] = _read(self.delegate, config_path)
            self.cache[config_path] = copy.deepcopy(self._files[config_path])  # merging changes it
        return self.cache[config_path]


def _read(repository: Any, config_path: str) -> ConfigResult | None:
    """A file as Hydra reads it, from the only folder that has it."""
    having = [source for source in repository.get_sources() if source.is_config(config_path)]
    folders = dict.fromkeys(Path(source.path).resolve() for source in having if source.scheme() == "file")
    name = f"{config_path.removesuffix('.yaml')}.yaml"
    if len(folders) > 1:
        where = " and ".join(map(str, folders))
        raise ConfigError(f"{name} is in {where}, and only the first would be read. Rename it in one of them.")
    if not having or having[0].scheme() != "file":
        found: ConfigResult | None = repository.load_config(config_path)
        return found
    with reading(Path(having[0].path, name)):
        return repository.load_config(config_path)  # type: ignore[no-any-return]


def _note(config: DictConfig, overrides: Sequence[Override]) -> None:
    """Writes down what was overridden, and where, as Hydra does: the rest may have been composed elsewhere."""
    node, job = config.hydra.overrides, config.hydra.job
    config.hydra.runtime.cwd = str(Path.cwd())
    node.hydra = [o.input_line for o in overrides if o.is_hydra_override()]
    node.task = [o.input_line for o in overrides if not o.is_hydra_override()]
    job.override_dirname = get_overrides_dirname(
        [o for o in overrides if not o.is_hydra_override()],
        kv_sep=job.config.override_dirname.kv_sep,
        item_sep=job.config.override_dirname.item_sep,
        exclude_keys=job.config.override_dirname.exclude_keys,
    )


def parsed_overrides(lines: Sequence[str]) -> list[Override]:
    """Overrides as Hydra understands them. A sweep has the same ones in many jobs."""
    return [_parsed(line) for line in lines]


@lru_cache(10_000)
def _parsed(line: str) -> Override:
    try:
        (override,) = OverridesParser.create().parse_overrides([line])
    except OverrideParseException:
        raise OverrideParseException(line, f"{line}: this cannot be read. {HOW_TO_WRITE}") from None
    if not override.key_or_group:
        raise OverrideParseException(line, f"{line}: there is no key. {HOW_TO_WRITE}")
    return override


def loader(sources: Sources) -> Loader:
    """The loader of some folders; a new one as soon as a file in them has changed."""
    files = (p for folder in sources.folders() for p in folder.rglob("*.yaml"))
    return _loader(sources, frozenset((p, p.stat().st_mtime_ns) for p in files if p.is_file()))


@lru_cache(4)
def _loader(sources: Sources, _: frozenset[tuple[Path, int]]) -> Loader:
    return Loader(sources.search_path())


@contextmanager
def use_loader(own: Loader, *, tried: bool) -> Iterator[None]:
    """In the block, Hydra's start uses this loader, and does not compose all jobs beforehand if that was tried."""
    with ExitStack() as undo:
        undo.callback(setattr, hydra_main, "ConfigLoaderImpl", ConfigLoaderImpl)
        setattr(hydra_main, "ConfigLoaderImpl", lambda config_search_path: own)  # noqa: ARG005, B010
        if tried:
            undo.callback(setattr, Sweeper, "validate_batch_is_legal", Sweeper.validate_batch_is_legal)
            setattr(Sweeper, "validate_batch_is_legal", lambda self, batch: None)  # noqa: ARG005, B010
        yield


def choices_of(group: str, sources: Sources | None = None) -> list[str]:
    """The files of a configuration group; of Hydra's own groups, also what its plugins add."""
    return sorted(loader(sources or Sources()).get_group_options(group))
