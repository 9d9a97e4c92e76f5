"""Verdicts on claims, on screen and in Markdown. Free of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from fedexp.reproduce.claim_verdict import ClaimVerdict
from fedexp.terminal.numbers import count

STYLES = {"refuted": "red", "confirmed": "green", "undecided": "yellow", "not run": "dim"}


def show(verdicts: Sequence[ClaimVerdict], console: Console) -> None:
    """Prints the claims of each paper; commands stay in one line, to be copied."""
    for paper, group in groupby(verdicts, key=lambda verdict: verdict.claim.paper):
        console.print(Text(f"\n{paper}", "bold"))
        for verdict in group:
            word = (verdict.said, STYLES[verdict.word])
            console.print(Text.assemble("  ", word, f": {verdict.claim.says} ({verdict.claim.source})"), soft_wrap=True)
            for line in (*verdict.notes, *verdict.commands):
                console.print(Text(f"    {line}", "dim"), soft_wrap=True)


def markdown(verdicts: Sequence[ClaimVerdict]) -> str:
    """The claims of each paper as a list."""
    words = Counter(verdict.said for verdict in verdicts)
    lines = [f"{count(len(verdicts), 'claim')}: {', '.join(f'{n} {word}' for word, n in words.most_common())}.", ""]
    for paper, group in groupby(verdicts, key=lambda verdict: verdict.claim.paper):
        lines += [f"### {paper}", ""]
        for verdict in group:
            lines.append(f"- **{verdict.said}**: {verdict.claim.says} ({verdict.claim.source})")
            lines += [f"  - {note}" for note in verdict.notes]
            lines += [f"  - to decide it: `{command}`" for command in verdict.commands]
        lines.append("")
    return "\n".join(lines)
