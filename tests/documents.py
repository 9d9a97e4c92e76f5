"""What a user reads: the README and the pages of the guide."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / ".github" / "guide").glob("*.md")))}
README, *_ = PAGES.values()
GUIDE = {path.stem: text for path, text in PAGES.items() if path.parent.name == "guide"}
ALL = "\n".join(PAGES.values())
