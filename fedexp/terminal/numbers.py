"""How numbers are written for people."""

from __future__ import annotations

from collections.abc import Sequence

DASH = "–"
BLOCKS = "▁▂▃▄▅▆▇"  # a full block would touch the line above
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def percent(value: float | None, spread: float | None = None) -> str:
    """Writes a share as ``86.1 %`` or ``86.1 ± 0.4 %``; what is absent is a dash."""
    if value is None:
        return DASH
    return f"{100 * value:.1f} %" if spread is None else f"{100 * value:.1f} ± {100 * spread:.1f} %"


def human_bytes(count: float) -> str:
    """Writes bytes with three digits and a decimal unit: ``12.3 MB``."""
    power = 0
    while count >= 999.5 and power < len(UNITS) - 1:
        count /= 1000
        power += 1
    digits = 0 if power == 0 else max(0, 3 - len(str(int(count))))
    return f"{count:.{digits}f} {UNITS[power]}"


def clock(seconds: float) -> str:
    """Writes a duration as ``00:31`` or ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def duration(seconds: float) -> str:
    """Writes how long one thing took: ``0.45 s``, ``12 s``, ``02:20``."""
    if seconds >= 60:
        return clock(seconds)
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def count(number: int, noun: str) -> str:
    """Writes a number of things: ``1 round``, ``2 rounds``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def sparkline(points: Sequence[tuple[int, float]], end: int, *, width: int) -> str:
    """Draws (round, value) points of a run of ``end`` rounds in a line of ``width`` characters.

    A value spans the rounds since the one before it; where several fall into one character the newest counts.
    The scale goes from the lowest to the highest value.
    """
    cells: dict[int, float] = {}
    since = points[0][0] - 1 if points else 0
    for position, value in points:
        last = min(width, -(-position * width // end)) - 1
        cells.update(dict.fromkeys(range(min(since * width // end, last), last + 1), value))
        since = position
    if not cells:
        return ""
    low, high = min(cells.values()), max(cells.values())
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    marks = {cell: BLOCKS[round((value - low) * scale)] for cell, value in cells.items()}
    return "".join(marks.get(cell, " ") for cell in range(max(cells) + 1))
