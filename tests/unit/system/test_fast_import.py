"""Start-up without what a run never uses. In processes of their own: here everything is imported already."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from fedexp.system.fast_import import import_lightning
import_lightning()
from fedexp.build import build
from fedexp.config.compose import composed
from fedexp.execute.base import SerialExecutor
from fedexp.testing import play
from fedexp.client.loops import TrainerLoop
play({}, loop=TrainerLoop)
carried = sorted({"torchmetrics", "torchvision", "scipy.signal", "torch._dynamo"} & set(sys.modules))
assert not carried, carried
import torch, torchmetrics, torch._dynamo
assert torchmetrics.__file__ and torch._dynamo.__file__ and torch._dynamo.disable
metric = torchmetrics.MeanMetric()
metric.update(torch.tensor([1.0, 3.0]))
assert metric.compute() == 2
print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_a_run_needs_none_of_it_and_all_of_it_can_be_had_later():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.strip() == "2.0", done.stderr


def test_the_library_itself_replaces_nothing():
    script = "import sys, fedexp.testing; print('torchmetrics' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
