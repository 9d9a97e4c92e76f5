"""The trackers of a run: any number of them, none of which can stop it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedexp.core.record import Record
from fedexp.track.base import RunCard, Tracker

Say = Callable[[str], None]


class Trackers:
    """Tells each tracker what happens. One that fails is left out from then on, and the user is told.

    Args:
        trackers: By the name under which each was chosen.
        say: Takes a line for the user.
    """

    def __init__(self, trackers: Mapping[str, Tracker], say: Say) -> None:
        self.failed: dict[str, str] = {}  # why, by tracker
        self._working = dict(trackers)
        self._say = say
        self._where = ""

    def start(self, card: RunCard, history: Sequence[Record]) -> None:
        """Opens all mirrors."""
        self._where = str(card.path)
        self._each(lambda tracker: tracker.start(card, history))

    def log(self, record: Record) -> None:
        """Mirrors one evaluated round."""
        self._each(lambda tracker: tracker.log(record))

    def finish(self, result: Mapping[str, Any] | None) -> None:
        """Closes all mirrors."""
        self._each(lambda tracker: tracker.finish(result))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._working.items()):
            try:
                tell(tracker)
            except Exception as error:  # whatever a service or a package raises
                del self._working[name]
                self.failed[name] = why = first_line(error)
                self._say(
                    f"tracker {name} failed ({why}). The run is not affected, and what is missing there can be added "
                    f"later: python -m fedexp.track sync {name} {shlex.quote(self._where)}"
                )


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
