"""Accounts for tests: none, or one on an imitation of the W&B server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.track.wandb_server import WandbServer, wandb_server

IMPATIENT = {  # seconds, in which W&B knows whole numbers only
    "x_file_stream_transmit_interval": 1, "x_file_stream_retry_wait_min_seconds": 1,
    "x_file_stream_retry_wait_max_seconds": 1, "x_graphql_retry_wait_min_seconds": 1,
    "x_graphql_retry_wait_max_seconds": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))


@pytest.fixture(scope="module")
def only_server() -> Iterator[WandbServer]:
    with wandb_server() as server:
        yield server


@pytest.fixture
def server(only_server: WandbServer, no_account: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    """The server with nothing in it, and an account there."""
    import wandb

    from fedexp.track.wandb import QUIET

    only_server.clear()
    monkeypatch.setenv("WANDB_BASE_URL", only_server.url)
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    for name, seconds in IMPATIENT.items():
        monkeypatch.setitem(QUIET, name, seconds)
    wandb.teardown()  # it remembers the host
    yield only_server
    wandb.teardown()
