"""Trackers mirror the run directory elsewhere; the directory itself is the record."""

from fedexp.track.base import NoTracker, RunCard, Tracker

__all__ = ["NoTracker", "RunCard", "Tracker"]
