"""No account, no home of W&B's or Trackio's but a temporary one."""

from __future__ import annotations

from tests.unit.track.account import no_account, only_server, server

__all__ = ["no_account", "only_server", "server"]
