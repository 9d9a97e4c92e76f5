"""Shows who owns what before anything is trained: ``python -m fedexp.data show data=… partition=…``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from rich.console import Console

from fedexp.config.arguments import parse_arguments
from fedexp.config.compose import Config, composed, federation
from fedexp.errors import ConfigError, FedexpError
from fedexp.partition.base import ClientSplit, Scene, digest
from fedexp.partition.file import SUFFIXES, encode
from fedexp.partition.summary import Summary, summarise, warnings
from fedexp.report import extra
from fedexp.system.files import write_atomically
from fedexp.terminal.command import Parser, perform
from fedexp.terminal.console import open_console

USAGE = "%(prog)s [group=choice ...] [key=value ...] [png=FILE] [save=FILE] [--config-dir FOLDER]"
ABOUT = """\
Says who owns which classes and how many samples, without training anything. Takes any setting of a run, as in
data=fmnist partition=dirichlet cohort.clients=100 partition.beta=0.1"""
GROUPS_SHOWN = 8
MAX_ITEMS_NAMED = 8
MAX_SETTING_LENGTH = 40  # letters of a setting in the title; groups of classes can be long


def main(argv: Sequence[str]) -> int:
    """Shows the partition that the arguments ask for; returns the exit code."""
    return perform(lambda: _show(argv, open_console(soft_wrap=True, highlight=False, markup=False)))


def _show(argv: Sequence[str], console: Console) -> None:
    parser = Parser(prog="python -m fedexp.data show", usage=USAGE, description=ABOUT)
    parser.add_argument("--png", metavar="FILE", help="draw the class × client map")
    parser.add_argument("--save", metavar="FILE", help="save the partition as .json or .npz, for partition=file")
    own, rest = parser.read_known(argv)
    if own.png:
        extra.altair(), extra.vl_convert()  # before the work, not after it
    png, save = _file("png", own.png, (".png",)), _file("save", own.save, SUFFIXES)
    given = parse_arguments(rest)
    config = composed(["algo=fedavg", *given.overrides], given.sources)  # no method matters here
    from fedexp.build import build  # torch, which a misspelt setting need not wait for

    made = build(config)
    splits, data = made.splits, made.data
    scene = Scene(data.train.y.numpy(), data.test.y.numpy(), data.spec.n_classes)
    summary = summarise(splits, scene.targets, scene.n_classes)
    title = _title(config)
    console.print(title, style="bold")
    for topic, fact in _facts(summary, splits):
        console.print(f"  {topic:<10}{fact}")
    for warning in warnings(summary):
        console.print(f"note: {warning}", style="yellow")
    if png:
        from fedexp.report.figures.partition import of_counts

        _write(png, of_counts(summary.counts.tolist(), title=title).encoded("png"))
        console.print(f"picture   {png}")
    if save:
        _write(save, encode(splits, scene, save.suffix, _origin(config)))
        console.print(f"saved     {save}")
        console.print(
            f"          partition=file partition.path={save} partition.digest={digest(splits)[:16]} "
            f"cohort.clients={len(splits)}"
        )


# ---------------------------------------------------------------- words
def _title(config: Config) -> str:
    choices = config["choices"]
    settings = {k: v for k, v in config["partition"].items() if k not in ("_target_", "holdout", "seed")}
    own_seed = config["partition"].get("seed")
    seed = config["seed"] if own_seed is None else own_seed
    inside = ", ".join(f"{k}={shorten(str(v), MAX_SETTING_LENGTH)}" for k, v in settings.items() if v is not None)
    clients = f"{federation(config)[0]} clients"
    partition = f"{choices['partition']} ({inside})" if inside else choices["partition"]
    return f"{choices['data']} · {partition} · {clients} · seed {seed}"


def _facts(summary: Summary, splits: Sequence[ClientSplit]) -> Iterator[tuple[str, str]]:
    owned = summary.counts > 0
    n_clients, n_classes = owned.shape
    having = summary.n_samples - summary.left_out
    yield (
        "coverage",
        f"{having:,} of {summary.n_samples:,} samples ({having / summary.n_samples:.1%}) and "
        f"{owned.any(axis=0).sum()} of {n_classes} classes have an owner",
    )
    yield "sizes", f"{_spread(summary.sizes)} training samples per client; {_spread(summary.n_test)} own test samples"
    yield "classes", f"{_spread(owned.sum(axis=1))} per client; {_spread(summary.owners)} owners per class"
    samples = f"{summary.shared:,} samples" if summary.shared else "no sample"
    copies = f", clients hold {summary.copies:,} second copies" if summary.copies else ""
    yield "overlap", f"{samples} with several owners{copies}; {_classes_in_common(owned)}"
    yield "groups", f"{len(summary.groups)} different class sets among {n_clients} clients"
    yield from (("", group) for group in _groups(summary))
    yield "digest", digest(splits)


def _classes_in_common(owned: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    """How many classes two clients share on average, of those that either owns."""
    n_clients = len(owned)
    if n_clients < 2:
        return "one client"
    owns = owned.astype(np.float64)
    both = owns @ owns.T
    either = owns.sum(axis=1)[:, None] + owns.sum(axis=1) - both
    pairs = np.triu_indices(n_clients, k=1)
    mean, of = both[pairs].mean(), either[pairs].mean()
    return f"two clients have {mean:.1f} of their {of:.1f} classes in common on average"


def _groups(summary: Summary) -> Iterator[str]:
    """The class sets that several clients have, largest group first."""
    several = sorted(((who, own) for own, who in summary.groups.items() if len(who) > 1), key=lambda g: -len(g[0]))
    for who, own in several[:GROUPS_SHOWN]:
        classes = f"all {len(own)} classes" if len(own) == summary.counts.shape[1] else f"classes {_some(own)}"
        yield f"{len(who)} clients with {classes}: {_some(who)}"
    if len(several) > GROUPS_SHOWN:
        yield f"and {len(several) - GROUPS_SHOWN} more groups of two clients or more"


def _spread(values: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (mean {values.mean():,.1f})"


def _some(items: Sequence[int]) -> str:
    shown = ", ".join(map(str, items[:MAX_ITEMS_NAMED]))
    return f"{shown} and {len(items) - MAX_ITEMS_NAMED} more" if len(items) > MAX_ITEMS_NAMED else shown


def _origin(config: Config) -> dict[str, Any]:
    partition = {k: v for k, v in config["partition"].items() if k != "_target_"}
    return {
        "data": config["choices"]["data"],
        "pool": config["pool"],
        "partition": {"name": config["choices"]["partition"], **partition},
        "clients": federation(config)[0],
        "seed": config["seed"],
    }


# ---------------------------------------------------------------- files
def _file(key: str, name: str | None, suffixes: Sequence[str]) -> Path | None:
    """Checks a file's name before the work, not after it."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in suffixes:
        raise ConfigError(f"{key}={path} has to end in {' or '.join(suffixes)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{key}={path}: there is no directory {path.parent}. Make it, or write elsewhere.")
    return path


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as cause:
        raise FedexpError(f"{path} cannot be written ({cause}). Write elsewhere.") from cause
