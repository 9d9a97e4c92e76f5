"""A folder of a tracker in the run directory, made anew whenever the run is mirrored again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from fedexp.system.files import refuse_link, writing
from fedexp.track import identity
from fedexp.track.base import RunCard


def fresh_folder(card: RunCard, name: str) -> Path:
    """Makes ``<run directory>/<name>/<title of the run>``. What was in ``<name>`` can be made again from the records.

    Viewers show a run by the path of its folder, so its title is part of that.
    """
    whole = card.path / name
    refuse_link(whole)
    own = whole / re.sub(r"[^\w.=+-]+", "_", identity.title(card))[:100]
    with writing(own):
        shutil.rmtree(whole, ignore_errors=True)
        own.mkdir(parents=True)
    return own
