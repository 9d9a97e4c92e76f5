"""The speaking roles of plays in plain text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

BY = "by William Shakespeare"
OLD = re.compile(r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")  # "  HAMLET. Who's there?", continued with four spaces
OLD_ERRORS = re.compile(r"^([a-zA-Z][a-zA-Z ]*)\. (.*)")  # The Comedy of Errors is not indented
ALONE = re.compile(r"^([A-Z][A-Za-z ’'\-]*)(\.|:)$")  # "HAMLET." or "Hamlet:" on a line of its own, then the speech
ERRORS = "THE COMEDY OF ERRORS"


def roles(path: Path) -> dict[str, str]:
    """Returns the text of every role, under the names of play and role.

    Reads Project Gutenberg's e-text 100 in its edition of 1994, by LEAF's rules (Caldas et al., arXiv 1812.01097), in
    its later editions, and other texts that put the speaker's name on a line of its own. As in LEAF, names are compared
    in capitals, and roles of two lines or less are left out.
    """
    text = path.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff")
    lines = text.splitlines()
    speeches = _old(lines) if sum(BY in line for line in lines) > 2 else _alone(lines)
    found: dict[str, list[str]] = defaultdict(list)
    for play, role, line in speeches:
        found["|".join(filter(None, (play, role.upper())))].append(line)
    return {role: "\n".join(said) for role, said in found.items() if len(said) > 2}


def _old(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """The edition of 1994: a play's title is a few lines above its author, speeches are indented."""
    play, role = "", ""
    for i, line in enumerate(lines):
        if BY in line:
            play = next((t.strip() for t in reversed(lines[max(0, i - 7) : i - 1]) if t.strip()), "")
            role = ""
        errors = play == ERRORS
        if match := (OLD_ERRORS if errors else OLD).match(line):
            role, said = match.groups()
        else:
            said = line if errors or line.startswith("    ") else ""
        if errors and (role.upper().startswith("ACT ") or line.startswith("<")):  # a heading, or the licence
            role = ""
        if play and role and said.strip():
            yield play, role, said.strip()


def _alone(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Editions with the speaker's name on a line of its own, after an empty one; titles are those of the contents."""
    titles = {line.strip() for line in lines[:200] if line.startswith("    ") and line.strip()}
    play, role, before = "", "", ""
    for line in lines:
        match = None if before.strip() else ALONE.match(line)
        if line in titles:
            play, role = line, ""
        elif match and (match.group(2) == ":" or match.group(1).isupper()):
            role = match.group(1)
        elif not line.strip():
            role = ""
        elif role and not line.startswith(" ["):
            yield play, role, line.strip()
        before = line
