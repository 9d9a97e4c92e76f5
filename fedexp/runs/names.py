"""The names of the files that a run writes. Nothing is removed but what carries one of them."""

from __future__ import annotations

import re

LOCK = ".lock"
CONFIG, PLAN, RESULT = "config.yaml", "plan.json", "result.json"
METRICS, CLIENTS, LEDGER, WEIGHTS = "metrics.jsonl", "clients.csv", "ledger.csv", "weights.csv"
PROBES = "probes.jsonl"  # only of runs with probes
GROWING = (METRICS, CLIENTS, LEDGER, WEIGHTS, PROBES)
MODEL = "model.safetensors"
ERROR = "error.txt"  # why the run failed
CHECKPOINT = "checkpoint"  # a folder
ARRAYS = "probes"  # a folder, with the arrays of probes by round
LATEST, PREVIOUS = "latest.json", "previous.json"
TENSORS = r"(?:server|client-\d{6,})-\d{6,}\.safetensors"  # see fedexp.runs.checkpoint and fedexp.runs.client_store


def _own(*names: str) -> re.Pattern[str]:
    """Names, and those of their temporary files."""
    name = "|".join(names)
    return re.compile(rf"(?:{name})|\.(?:{name})\.\d+\.tmp")


OF_A_RUN = _own(*map(re.escape, (LOCK, CONFIG, PLAN, RESULT, *GROWING, MODEL, ERROR)))
OF_ARRAYS = _own(r"round-\d{4,}\.safetensors")
OF_A_SWEEP = _own(r"job-\d{4,}\.json")  # in the folder of its reports
OF_A_CHECKPOINT = _own(re.escape(LATEST), re.escape(PREVIOUS), TENSORS)
