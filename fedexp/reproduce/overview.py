"""What all results together say: the claims of the papers, and the page of all tables. Free of torch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedexp.errors import ConfigError
from fedexp.reproduce import claim_text, published
from fedexp.reproduce.claim_verdict import judged
from fedexp.reproduce.local import on_file
from fedexp.reproduce.page import NAME, generated, write_page
from fedexp.reproduce.show import Display, write_text


def show_claims(committed: Path, out: Path, display: Display) -> None:
    """Shows what the results on file say of each claim.

    Raises:
        ConfigError: If they are asked for in a form that they do not have.
    """
    if display.form not in ("terminal", "markdown"):
        raise ConfigError(f"format={display.form}: claims are written for the terminal or in markdown.")
    found = [result for name in published.entries() for result in on_file(name, committed, out)]
    verdicts = judged(found)
    if display.to is not None:
        write_text(display.to, claim_text.markdown(verdicts))
        display.console.print(f"The claims are in {display.to}.", soft_wrap=True)
    elif display.form == "markdown":
        display.console.print(claim_text.markdown(verdicts), soft_wrap=True)
    else:
        claim_text.show(verdicts, display.console)


def make_page(committed: Path, to: Path | None, console: Console) -> None:
    """Writes the page of the committed results, which lies beside them unless another place is named."""
    path = to or committed / NAME
    changed = write_page(path, generated(committed))
    console.print(f"{path} is {'written' if changed else 'unchanged'}.", soft_wrap=True)
