"""Files of safetensors as arrays of numpy, for those who look at runs. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from fedexp.errors import DamagedError
from fedexp.runs.names import ARRAYS
from fedexp.system.files import read

Arrays = dict[str, np.ndarray[Any, Any]]


def load_arrays(path: Path) -> Arrays:
    """The arrays of a file.

    Raises:
        DamagedError: If it cannot be read as what it is.
    """
    try:
        loaded: Arrays = safetensors.numpy.load(read(path))
    except (SafetensorError, ValueError, KeyError, TypeError) as cause:
        raise DamagedError(f"{path} is damaged: it cannot be read as safetensors ({cause}).") from cause
    return loaded


def observed_arrays(run: Path, round_: int) -> Arrays:
    """What probes have written as arrays in a round of a run, by ``probe/client/name``."""
    return load_arrays(run / ARRAYS / f"round-{round_:04d}.safetensors")
