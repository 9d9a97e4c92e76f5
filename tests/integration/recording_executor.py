"""An executor that leaves a note of what it was given of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from fedexp import sweep
from fedexp.execute.base import Blueprint, Say, SerialExecutor
from fedexp.system import resources


class LookingExecutor(SerialExecutor):
    def __init__(self, blueprint: Blueprint, *, threads: int, say: Say) -> None:
        super().__init__(blueprint, threads=threads, say=say)
        seen = f"{resources.cores()} core, {os.environ['OMP_NUM_THREADS']} thread, gpu {','.join(resources.gpus())}"
        reports = Path(os.environ[sweep.ENV])
        (reports / f"seen-{len(list(reports.glob('seen-*')))}-{os.getpid()}").write_text(seen)
