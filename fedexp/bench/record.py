"""The figures of a benchmark as files, with what is needed to measure them again: a csv always, JSON if asked for."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedexp import __version__
from fedexp.bench import usage
from fedexp.bench.report import KINDS, ReportLine


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes all figures."""
    record = {"command": _command(), **machine(), **content}
    path.write_text(json.dumps(record, indent=2, default=asdict) + "\n")


def write_csv(folder: Path, command: str, found: Mapping[str, Mapping[str, Any]], accelerator: str = "cpu") -> Path:
    """Writes the lines of all tables into a new file, whose name tells command, machine, torch and time.

    Args:
        folder: Where; it is made if need be.
        command: Which benchmark it was.
        found: Of each workload, ``data`` and the ``lines`` of its table.
        accelerator: On which it ran, as ``loop.accelerator`` has it.
    """
    measured = machine(accelerator)
    place, versions = measured["machine"], measured["versions"]
    about = {"machine": place["name"], "cores": place["cores"], **versions, "command": _command()}
    rows = [{**row, **about} for row in _rows(found)]
    folder.mkdir(parents=True, exist_ok=True)
    parts = (command, about["machine"], f"{about['cores']}-cores", f"torch-{about['torch']}")
    name = "_".join(re.sub(r"[^\w.+]+", "-", part).strip("-") for part in parts)
    path = folder / f"{name}_{time.strftime('%Y-%m-%d-%H%M%S')}.csv"
    with path.open("x", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def _rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for workload, contest in found.items():
        base, *_ = contest["lines"]
        for line in contest["lines"]:
            yield {"workload": workload, "data": contest["data"], "against": base.name, **_figures(line)}


def _figures(line: ReportLine) -> dict[str, Any]:
    spread = {} if line.ratio is None else asdict(line.ratio)
    return {
        "name": line.name, "ratio": spread.get("median"),
        "lower_quartile": spread.get("lower"), "upper_quartile": spread.get("upper"), "least": spread.get("least"),
        "most": spread.get("most"), "turns": len(line.ratios) or None,
        "seconds": line.wall, "cpu_seconds": line.cpu, **{kind: line.seconds.get(kind) for kind in (*KINDS, "other")},
        "megabytes": line.memory, "passes": line.passes, "accuracy": line.accuracy, "startup": line.startup,
        "others": line.others,
    }  # fmt: skip


def machine(accelerator: str = "cpu") -> dict[str, Any]:
    """Versions, cores, load, and a name: the accelerator's if one was used, or else the processor's."""
    processor = _processor()
    return {
        "versions": {"fedexp": __version__, "python": platform.python_version(), **_versions()},
        "machine": {
            "name": _accelerator(accelerator) or processor, "cores": usage.cores(), "processor": processor,
            "system": platform.platform(), "load": os.getloadavg(),
        },
    }  # fmt: skip


def _accelerator(accelerator: str) -> str | None:
    import torch  # not above: --help answers without it

    from fedexp.client.loops import first_device

    device = first_device(accelerator)
    if device.type == "cpu":
        return None
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _versions() -> dict[str, str]:
    found = {}
    for package in ("torch", "lightning", "numpy", "ray"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    lines = (usage.PROC / "cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _command() -> str:
    return shlex.join(["python", "-m", "fedexp.bench", *sys.argv[1:]])
