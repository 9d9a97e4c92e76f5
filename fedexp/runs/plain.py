"""Text from files, to be shown: without anything that a terminal would obey."""

from __future__ import annotations

import re

SEQUENCES = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # colours and cursor; titles and links
CONTROLS = r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # also what turns the direction of text
UNWANTED = re.compile(f"{SEQUENCES}|{CONTROLS}")


def plain(text: object) -> str:
    """One line without escapes and control characters, that every terminal can show."""
    return UNWANTED.sub("", str(text).replace("\n", " ")).encode("utf-8", "replace").decode()
