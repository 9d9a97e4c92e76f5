"""A headless Chromium for tests, driven through chromedriver's HTTP interface with the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
SECONDS = 60  # to wait for anything


class Browser:
    """One window."""

    def __init__(self, address: str, session: dict[str, Any]) -> None:
        self._session = f"{address}/session/{session['sessionId']}"

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        return _post(self._session + path, body)

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path: Path) -> None:
        """Opens a file as a double click does, and waits until its figures are drawn."""
        self._ask("/url", {"url": path.absolute().as_uri()})
        self.wait("return !document.querySelector('figure') || document.documentElement.dataset.drawn === 'true'")

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function with this body returns."""
        return self._ask("/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> None:
        """Waits until a script returns true."""
        end = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}\n{self.log('browser')}"
            time.sleep(0.05)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was added since the last call: ``browser`` is the console, ``performance`` has all network events."""
        return self._ask("/se/log", {"type": kind})

    def resize(self, width: int, height: int = 900) -> None:
        """Sets the size of the page, also below the least width of a window."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system would say."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Moves the pointer there, and perhaps clicks."""
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=int(click))

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        made = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(made["data"]))


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser with an empty profile; the test is skipped where there is none."""
    driver, program = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or program is None:
        pytest.skip("needs Chromium and its driver, Debian's packages chromium and chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            started = next(line for line in process.stdout if "started successfully on port" in line)
            address = f"http://127.0.0.1:{started.rsplit(None, 1)[1].rstrip('.')}"
            wanted = {
                "goog:chromeOptions": {"binary": program, "args": [*FLAGS, f"--user-data-dir={profile}"]},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            session = _post(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})
            try:
                yield Browser(address, session)
            finally:  # a driver that is ended leaves its browser alone
                urlopen(Request(f"{address}/session/{session['sessionId']}", method="DELETE"), timeout=SECONDS)  # noqa: S310 - loopback
        finally:
            process.terminate()
            process.wait()


def _post(address: str, body: dict[str, Any]) -> Any:
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - loopback
    with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
        return json.load(answer)["value"]
