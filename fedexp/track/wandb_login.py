"""Whether W&B would find an API key, asked without network and without a prompt."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

PUBLIC_HOST = "api.wandb.ai"  # the name under which logins to the public service are on file


def has_key(wandb: ModuleType) -> bool:
    """Looks where the package itself looks: environment, netrc file, settings."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = wandb.setup().settings
    hosts = {urlsplit(settings.base_url).netloc}
    if settings.base_url == wandb.Settings.model_fields["base_url"].default:
        hosts.add(PUBLIC_HOST)
    return bool(settings.api_key) or _in_netrc(hosts)


def _in_netrc(hosts: set[str]) -> bool:
    named = os.environ.get("NETRC")
    places = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for place in places:
        try:
            book = netrc.netrc(place)
        except (OSError, netrc.NetrcParseError):
            continue
        # "default" entries answer for any host but hold no W&B key.
        if any(host in book.hosts for host in hosts):
            return True
    return False
