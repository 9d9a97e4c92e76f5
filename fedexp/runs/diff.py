"""Where two runs part: the first round in which anything they wrote down is different."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedexp.config.identity import of_missing_classes, relevant
from fedexp.errors import DamagedError, FedexpError
from fedexp.runs.array_files import load_arrays
from fedexp.runs.directory import RunDir
from fedexp.runs.names import CHECKPOINT, CLIENTS, CONFIG, GROWING, LATEST, METRICS, MODEL, PLAN, RESULT, WEIGHTS
from fedexp.runs.plain import plain
from fedexp.runs.pointer import Pointer
from fedexp.system.files import read_json

Rows = dict[int, dict[str, dict[str, str]]]  # round -> client or "" -> column -> value
ABSENT = "–"
MAX_DIFFERENCES_SHOWN = 5  # of one kind


@dataclass
class Difference:
    """What two runs do not have in common. Settings may differ and all numbers be equal."""

    settings: list[str] = field(default_factory=list)
    partition: bool = False
    round: int | None = None  # the first in which they part
    clients: list[str] = field(default_factory=list)  # in that round
    tensors: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)  # what is left at the end: rounds, files

    @property
    def equal(self) -> bool:
        """Whether all numbers are the same."""
        return not (self.partition or self.round is not None or self.ends)


def show_diff(a: Path, b: Path, console: Console) -> int:
    """Prints where two runs part; 0 if all their numbers are equal."""
    found = compare(a, b)
    _list(console, "settings that differ", found.settings)
    if found.partition:
        console.print("The partitions differ: the clients do not have the same samples.")
    if found.round is not None:
        tensor = f", tensor {found.tensors[0]}" if found.tensors else ""
        console.print(plain(f"first part at round {found.round}{tensor}"))
        _list(console, "  clients", found.clients)
        _list(console, "  tensors of the server's model after it", found.tensors)
        _list(console, "  metrics", found.metrics)
    _list(console, "at the end", found.ends)
    if found.equal:
        console.print("All numbers are equal" + (", though the settings differ." if found.settings else "."))
    return int(not found.equal)


def compare(a: Path, b: Path) -> Difference:
    """Compares all that two runs have written, but the seconds.

    Raises:
        FedexpError: If one of them is not a run's directory.
    """
    configs = [_config(path) for path in (a, b)]
    found = Difference(settings=_unequal(*configs))
    plans = [read_json(path / PLAN).get("partition_digest") for path in (a, b)]
    found.partition = plans[0] != plans[1]
    clients, weights = ([_rows(path, name) for path in (a, b)] for name in (CLIENTS, WEIGHTS))
    metrics = [_metrics(path) for path in (a, b)]
    if _measured_otherwise(a, b):
        clients = [{t: {c: _but_missing(row) for c, row in of.items()} for t, of in r.items()} for r in clients]
        metrics = [{t: _but_missing(record) for t, record in of.items()} for of in metrics]
    lengths = [max(rows, default=0) for rows in clients]
    for t in range(1, min(lengths) + 1):
        found.clients = _client_rows(clients[0].get(t, {}), clients[1].get(t, {}))
        found.tensors = [n for n, *_ in _pairs(*(w.get(t, {}).get("", {}) for w in weights)) if n != "round"]
        found.metrics = _unequal(*(m.get(t, {}) for m in metrics))
        if found.clients or found.tensors or found.metrics:
            found.round = t
            break
    found.ends = list(_ends(a, b, lengths))
    return found


def _config(path: Path) -> dict[str, Any]:
    config = RunDir(path).config()
    if config is None or not (path / PLAN).exists():
        raise FedexpError(
            f"{path} is not the directory of a run: it has no config.yaml or plan.json. See: status FOLDER"
        )
    try:
        return _flat(relevant(config))
    except (KeyError, TypeError, AttributeError, ValueError) as cause:
        raise DamagedError(f"{path / CONFIG} is damaged: it is not what a run writes ({cause}).") from cause


def _measured_otherwise(a: Path, b: Path) -> bool:
    """Whether missing classes were not measured in the same way: then their measures cannot be compared."""
    asked = [of_missing_classes(RunDir(path).config() or {}) for path in (a, b)]
    return json.dumps(asked[0]) != json.dumps(asked[1])


def _but_missing(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(("missing/", "missing."))}


def _rows(path: Path, name: str) -> Rows:
    rows: Rows = {}
    for row in RunDir(path).rows(name):
        rows.setdefault(_round(path / name, row), {})[row.get("client", "")] = row
    return rows


def _metrics(path: Path) -> dict[int, dict[str, Any]]:
    records = RunDir(path).records()
    return {_round(path / METRICS, r): _flat({k: v for k, v in r.items() if k != "seconds"}) for r in records}


def _round(path: Path, row: Mapping[str, Any]) -> int:
    try:
        return int(row["round"])
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        raise DamagedError(f"{path} is damaged: a row of it has no round ({cause}).") from cause


def _client_rows(a: Mapping[str, Mapping[str, str]], b: Mapping[str, Mapping[str, str]]) -> list[str]:
    if list(a) != list(b):
        return [f"other clients take part: {' '.join(a)} | {' '.join(b)}"]
    return [f"client {client}: {', '.join(unequal)}" for client in a if (unequal := _unequal(a[client], b[client]))]


def _ends(a: Path, b: Path, lengths: Sequence[int]) -> Iterator[str]:
    if lengths[0] != lengths[1]:
        yield f"rounds: {lengths[0]} | {lengths[1]}"
    results, damage = zip(*(_result(path) for path in (a, b)), strict=True)
    yield from filter(None, damage)
    yield from (f"digest of the {name}: {x} | {y}" for name, x, y in _pairs(*results))
    for name in (*GROWING, MODEL, RESULT):
        if len(missing := [path for path in (a, b) if not (path / name).exists()]) == 1:
            yield f"{name}: missing in {missing[0]}"
    for name, (left, right) in _files(a, b).items():
        unequal = [(n, _gap(x, y)) for n, x, y in _pairs(_load(left), _load(right))]
        yield from (f"{name}: {tensor}: {gap}" for tensor, gap in unequal)


def _result(path: Path) -> tuple[dict[str, Any], str]:
    """The digests of a finished run, and what is wrong with its files."""
    try:
        return (RunDir(path).result() or {}).get("digests", {}), ""
    except DamagedError as error:
        return {}, str(error)


def _files(a: Path, b: Path) -> dict[str, tuple[Path, Path]]:
    """The files with tensors that both have: the final model, and the checkpoints if they are of the same round."""
    files = {MODEL: (a / MODEL, b / MODEL)}
    folders = [path / CHECKPOINT for path in (a, b)]
    if all((folder / LATEST).exists() for folder in folders):
        left, right = (Pointer.read(folder / LATEST) for folder in folders)
        if left.round == right.round:
            files["checkpoint, server"] = (folders[0] / left.server.name, folders[1] / right.server.name)
            for client in sorted(left.clients.keys() & right.clients.keys()):
                pair = folders[0] / left.clients[client].name, folders[1] / right.clients[client].name
                files[f"checkpoint, client {client}"] = pair
    return {name: pair for name, pair in files.items() if name != MODEL or all(path.exists() for path in pair)}


def _load(path: Path) -> dict[str, Any]:
    """The tensors of a file; checkpoints number them to keep their order."""
    loaded = load_arrays(path)
    return {key.partition("|")[2] or key: _Tensor(loaded[key]) for key in sorted(loaded)}


@dataclass(frozen=True, eq=False)
class _Tensor:
    """An array that is equal to another if it is bit for bit."""

    value: np.ndarray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Tensor):
            return NotImplemented
        mine, theirs = self.value, other.value
        return (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())

    __hash__ = None  # type: ignore[assignment]


def _gap(a: Any, b: Any) -> str:
    if not (isinstance(a, _Tensor) and isinstance(b, _Tensor)) or a.value.shape != b.value.shape:
        return "not in both, or of another shape"
    return f"up to {np.abs(a.value.astype(float) - b.value.astype(float)).max():.3g} apart"


def _unequal(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{key} {x} | {y}" for key, x, y in _pairs(a, b)]


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The keys under which two mappings differ, with both values."""
    for key in dict.fromkeys([*a, *b]):
        x, y = a.get(key, ABSENT), b.get(key, ABSENT)
        if x != y:
            yield key, x, y


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, Mapping):
        return {prefix: node}
    return {
        k: v for key, value in node.items() for k, v in _flat(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def _list(console: Console, heading: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"{heading}:")
        indent = " " * (len(heading) - len(heading.lstrip()) + 2)
        for line in lines[:MAX_DIFFERENCES_SHOWN]:
            console.print(indent + plain(line))
        if len(lines) > MAX_DIFFERENCES_SHOWN:
            console.print(f"{indent}and {len(lines) - MAX_DIFFERENCES_SHOWN} more")
