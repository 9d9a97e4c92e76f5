"""Trackers mirror the run directory elsewhere; the directory itself is the record."""

from fedexp.track.base import RunCard, Tracker
from fedexp.track.several import Trackers

__all__ = ["RunCard", "Tracker", "Trackers"]
