"""What is known of an evaluated round."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
"""``round`` (from 1) and, where they make sense, ``aggregation``, ``personalization``, ``terms``, ``bytes`` and
``seconds``. A metric that makes no sense for a method is absent."""
