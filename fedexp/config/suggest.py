"""The nearest of the names that exist, for one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def nearest(word: str, words: Sequence[str], shown: Sequence[str] = ()) -> str:
    """A hint at the words that are closest to a wrong one; where none is close, at those that are to be shown."""
    lower = {each.lower(): each for each in words}
    near = [lower[each] for each in get_close_matches(word.lower(), lower, n=3, cutoff=0.5)]
    known = ", ".join(sorted(shown or words)) or "none"
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {known}."
