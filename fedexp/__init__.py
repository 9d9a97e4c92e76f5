"""fedexp: federated learning experiments when clients own only some of the classes."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from fedexp.api import Result, run
    from fedexp.report.load import load

__version__ = "0.1.0"
__all__ = ["Result", "__version__", "load", "run"]


def __getattr__(name: str) -> Any:
    """Imports the interface when it is first used, so that ``import fedexp`` is cheap."""
    if name in ("run", "Result"):
        from fedexp import api

        return getattr(api, name)
    if name == "load":
        from fedexp.report.load import load

        return load
    raise AttributeError(f"module 'fedexp' has no attribute {name!r}")
