"""Where configuration files are: ours, those of installed packages, and those of the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedexp.config.packages import GROUP, packages


def conf_dir() -> Path:
    """The configuration files: beside the package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    return here / "conf" if (here / "conf").is_dir() else here.parent / "conf"


@dataclass(frozen=True)
class Sources:
    """Where a configuration is read from.

    Attributes:
        conf: The folder of the primary configuration: ours, or that of ``--config-path``.
        extra: The folder of ``--config-dir``, for what is not in the first.
        name: The primary configuration.
    """

    conf: Path = field(default_factory=conf_dir)
    extra: Path | None = None
    name: str = "config"

    def folders(self) -> list[Path]:
        """All folders, in the order in which they are searched."""
        return [self.conf, *(p.conf for p in packages()), *([self.extra] if self.extra else [])]

    @property
    def options(self) -> list[str]:
        """The options of a command that reads from here, ``--config-dir FOLDER``; none for what is read without any."""
        usual = Sources()
        pairs = (
            ("--config-path", self.conf, usual.conf),
            ("--config-dir", self.extra, usual.extra),
            ("--config-name", self.name, usual.name),
        )
        return [word for option, value, default in pairs if value != default for word in (option, str(value))]

    def search_path(self) -> ConfigSearchPath:
        """The folders as Hydra knows them."""
        search_packages()
        path = create_config_search_path(str(self.conf))
        if self.extra:
            path.prepend("command-line", f"file://{self.extra}", SearchPathQuery(provider="schema"))
        return path


class _PackagePlugin(SearchPathPlugin):
    """Puts the folders of installed packages on every search path, after ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in packages():
            search_path.append(f"{GROUP} {package.name}", f"file://{package.conf}")


def search_packages() -> None:
    """From now on Hydra reads the configuration files of installed packages too."""
    Plugins.instance().register(_PackagePlugin)
