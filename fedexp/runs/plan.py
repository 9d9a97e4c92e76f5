"""The plan: what would run, with every message's bytes, before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedexp.config.compose import Config, title
from fedexp.core.algorithm import PER_STEP, SEAMS, Algorithm
from fedexp.core.component import overrides
from fedexp.core.state import Scope, nbytes, pick
from fedexp.data.source import Loaded
from fedexp.models.split import SplitModel
from fedexp.partition.base import ClientSplit, digest
from fedexp.partition.summary import Summary, summarise, warnings
from fedexp.runs.storage_estimate import StorageEstimate
from fedexp.server.sampler import cohort_size
from fedexp.terminal.numbers import human_bytes

SHOWN = 20  # clients in a table


@dataclass(frozen=True)
class Plan:
    """The plan as data, and the partition's summary for printing."""

    content: dict[str, Any]
    summary: Summary
    title: str

    @property
    def digest(self) -> str:
        """Identifies what a checkpoint belongs to: a method with its partition, and after a hyphen the data."""
        parts = {k: self.content[k] for k in ("components", "phases", "slots", "messages", "partition_digest")}
        method = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"{method[:16]}-{self.content['data_digest'][:16]}"

    def show(self, console: Console) -> None:
        """Prints the plan."""
        tables = [*_tables(self.content), _partition_table(self.summary), *_constant_tables(self.content)]
        console.print(Group(Text(self.title, style="bold"), *tables))
        for note in self.content["notes"]:
            console.print(f"note: {note}", style="yellow", markup=False, highlight=False)


def describe(
    algorithm: Algorithm,
    config: Config,
    net: SplitModel,
    splits: Sequence[ClientSplit],
    loaded: Loaded,
    footprint: StorageEstimate,
    caveats: Sequence[str] = (),
    more_notes: Sequence[str] = (),
) -> Plan:
    """Says what would run. ``caveats`` are the notes that belong beside its numbers, in the summary too."""
    summary = summarise(splits, loaded.train.y.numpy(), algorithm.facts.n_classes)
    down, up = forecast(algorithm)
    facts = algorithm.facts
    cohort, layout = cohort_size(facts.n_clients, facts.fraction), facts.layout
    content = {
        "components": {k: type(c).__name__ for k, c in algorithm.components.items()},
        "seams": {s: keys for s in SEAMS if (keys := [k for k, c in algorithm.components.items() if overrides(c, s)])},
        "phases": [{**asdict(p), "acting": _acting(algorithm, p.name)} for p in algorithm.all_phases],
        "slots": {
            n: {"scope": s.scope, "down": s.down, "bytes": _slot_bytes(algorithm, n)}
            for n, s in algorithm.slots.items()
        },
        "messages": {"down": down, "up": up},
        "bytes_per_client_and_round": {"down": sum(down.values()), "up": sum(up.values())},
        "bytes_per_round": {"down": cohort * sum(down.values()), "up": cohort * sum(up.values())},
        "bytes_kept_per_client": slot_bytes(algorithm, "client"),
        "footprint": footprint.as_dict(),
        "cohort": {"clients": facts.n_clients, "per_round": cohort},
        "public": facts.public,
        "rounds": config["rounds"],
        "parameters": {
            "total": sum(p.numel() for p in net.parameters()),
            "features": sum(p.numel() for p in net.features.parameters()),
            "classifier": sum(p.numel() for p in net.classifier.parameters()),
            "shared": sum(algorithm.facts.initial[n].numel() for n in layout.shared),
        },
        "feature_dim": net.feature_dim,
        "partition": summary.as_dict(),
        "partition_digest": digest(splits),
        "constants_by_class": dict(_by_class(algorithm)),
        "data_digest": loaded.digest,
        "caveats": list(caveats),
        "notes": [*caveats, *(f"partition: {w}" for w in warnings(summary)), *more_notes],
    }
    return Plan(content, summary, title(config))


def forecast(algorithm: Algorithm) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each message to and from one client in one round."""
    down = {n: nbytes(t) for n, t in algorithm.downlink(algorithm.fresh_state(), 0).items()}
    model = pick(algorithm.facts.initial, algorithm.travelling)
    up = {"model": nbytes(model)} if model else {}
    return down, {**up, **{n: nbytes(u.like(algorithm.init(n))) for n, u in algorithm.uploads.items()}}


def _acting(algorithm: Algorithm, phase: str) -> list[str]:
    """The per-step seams in use in a phase, as ``component.seam``."""
    return [f"{key}.{seam}" for seam in PER_STEP for key, _ in algorithm.active(phase, seam)]


def slot_bytes(algorithm: Algorithm, scope: Scope) -> int:
    """Bytes of all slots of a scope; of one client, where each has its own."""
    return sum(_slot_bytes(algorithm, n) for n, s in algorithm.slots.items() if s.scope == scope)


def _slot_bytes(algorithm: Algorithm, name: str) -> int:
    return nbytes(algorithm.slots[name].init(algorithm.init(name)))


def _tables(content: dict[str, Any]) -> list[Table]:
    phases = Table("phase", "starts from", "trains", "share of steps", "acting seams", title="Client's round")
    acting = content["seams"]
    for p in content["phases"]:
        epochs = "" if p["epochs"] is None else f", {p['epochs']:g} epochs"
        span = f"{p['begin']:.0%} to {p['end']:.0%}{epochs}"
        kind = " (uploads)" if p["uploads"] else " (before a test)" if p["test"] else ""
        phases.add_row(p["name"] + kind, p["start"], p["train"], span, ", ".join(p["acting"]))
    parts = Table(
        "component", "class", "seams", title="Components" if content["components"] else "Components: none (FedAvg)"
    )
    for key, kind in content["components"].items():
        parts.add_row(key, kind, ", ".join(s for s, keys in acting.items() if key in keys))
    state = Table("slot or message", "where", "bytes", title="State and messages, per client")
    for name, slot in content["slots"].items():
        where = slot["scope"] + (", sent down" if slot["down"] else "")
        state.add_row(name, where, human_bytes(slot["bytes"]))
    for direction in ("down", "up"):
        for name, size in content["messages"][direction].items():
            state.add_row(name, direction, human_bytes(size))
    numbers = Table("", "", show_header=False, title="Numbers")
    parameters = content["parameters"]
    numbers.add_row("parameters", f"{parameters['total']:,} ({parameters['shared']:,} travel)")
    numbers.add_row("cohort", f"{content['cohort']['per_round']} of {content['cohort']['clients']} clients")
    numbers.add_row("rounds", str(content["rounds"]))
    if content["public"]:
        numbers.add_row("public samples", f"{content['public']:,} of the test set, at the server")
    per_round = content["bytes_per_round"]
    numbers.add_row("bytes per round", f"{human_bytes(per_round['down'])} down, {human_bytes(per_round['up'])} up")
    footprint = content["footprint"]
    numbers.add_row("store", footprint["store"])
    for place in ("memory", "disk"):
        parts_of = ", ".join(f"{k} {human_bytes(v)}" for k, v in footprint[place].items() if v)
        numbers.add_row(f"{place}, at most", f"{human_bytes(sum(footprint[place].values()))}: {parts_of}")
    return [phases, parts, state, numbers]


def _by_class(algorithm: Algorithm) -> Iterator[tuple[str, list[list[float]]]]:
    """Constants that have a number for each client and class, such as the factors of a softmax: the first clients'."""
    shape = (algorithm.facts.n_clients, algorithm.facts.n_classes)
    for name, tree in algorithm.constants.items():
        if "value" in tree and tuple(tree["value"].shape) == shape:
            yield name, [[float(f"{v:.4g}") for v in row] for row in tree["value"][:SHOWN].tolist()]


def _constant_tables(content: dict[str, Any]) -> Iterator[Table]:
    for name, rows in content["constants_by_class"].items():
        clients = content["cohort"]["clients"]
        more = "" if len(rows) == clients else f" (first {len(rows)} of {clients})"
        table = Table("client", *map(str, range(len(rows[0]))), title=f"{name}, class × client{more}")
        for client, row in enumerate(rows):
            table.add_row(str(client), *(f"{v:g}" for v in row))
        yield table


def _partition_table(summary: Summary) -> Table:
    counts = np.asarray(summary.counts)
    shown = min(len(counts), SHOWN)
    more = "" if shown == len(counts) else f" (first {shown} of {len(counts)})"
    table = Table("client", "n", *map(str, range(counts.shape[1])), title=f"Training samples, class × client{more}")
    for client, row in enumerate(counts[:shown]):
        table.add_row(str(client), str(row.sum()), *(str(v) if v else "·" for v in row))
    return table
