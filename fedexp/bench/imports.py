"""What a run's imports cost, by package. Free of torch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

from fedexp.errors import FedexpError

LINE = re.compile(r"import time: +(\d+) \| +\d+ \| +([\w.]+)")  # microseconds of its own, with what it imports, name


def measure(overrides: Sequence[str]) -> dict[str, float]:
    """Seconds that a run spends in the modules of each top-level package, the dearest first; noting them costs too.

    Raises:
        FedexpError: If the run fails.
    """
    command = [sys.executable, "-X", "importtime", "-m", "fedexp", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
    if done.returncode:
        raise FedexpError(f"`{' '.join(command)}` failed:\n{LINE.sub('', done.stderr)}{done.stdout}")
    return by_package(done.stderr)


def by_package(text: str) -> dict[str, float]:
    """Seconds of each top-level package in what ``python -X importtime`` prints: its modules' own, without others'."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if match := LINE.match(line):
            found[match[2].partition(".")[0]] += int(match[1])
    return {package: microseconds / 1e6 for package, microseconds in found.most_common()}
