"""The errors a user can meet. Each says what is wrong, where, and what to do."""

from __future__ import annotations


class FedexpError(Exception):
    """Base of all errors that are about the user's input or environment, not about our code."""


class ConfigError(FedexpError):
    """The configuration cannot be run; the message lists every problem found."""


class DataError(FedexpError):
    """A data set is missing, incomplete or not what its name says."""


class PartitionError(FedexpError):
    """The requested split of the samples over the clients is impossible."""


class PlanError(FedexpError):
    """The components of an algorithm do not fit together."""


class ClientError(FedexpError):
    """A client's work failed; the message names round, client and phase, ``details`` is the traceback of its cause."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message, details)
        self.details = details

    def __str__(self) -> str:
        return str(self.args[0])


class ProbeError(ClientError):
    """A probe failed. It stops the run whatever is done about clients that fail: no number may depend on probes."""


class CheckpointError(FedexpError):
    """A checkpoint is corrupt or belongs to another run."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing, or is not what was written."""


class DiskError(FedexpError):
    """A file of the run cannot be written."""


class LimitError(FedexpError):
    """The system refuses files, memory or threads."""
