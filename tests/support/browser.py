"""One headless Chromium, driven over its DevTools protocol through a pipe.

So a page is opened from its file as it is, at a true width of 390 pixels, and every request, log line and exception is
seen.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
PATIENCE_S = 60.0


class Browser:
    """One headless Chromium with a profile of its own, spoken to through a pipe; `events` is what it told unasked."""

    def __init__(self, folder: Path) -> None:
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        redirect = f'exec "$0" "$@" 3<&{their_read} 4>&{their_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, *command],
            pass_fds=(their_read, their_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        self._waiting = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self._read, 1 << 20) if ready else b""
            assert more, "Chromium went silent"
            self._waiting += more
        message, _, self._waiting = self._waiting.partition(b"\0")
        data: dict[str, Any] = json.loads(message)
        return data

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a DevTools command."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        message = json.dumps({"id": self._last, "method": method, "params": params, **session})
        os.write(self._write, message.encode() + b"\0")
        while (data := self._message()).get("id") != self._last:
            self.events.append(data)
        assert "error" not in data, data
        result: dict[str, Any] = data["result"]
        return result

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Load a file in a window of that width."""
        self.events.clear()
        window = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.call("Page.navigate", url=page.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._message())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of what it promises."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def printed(self) -> bytes:
        """The page on A4 paper, as PDF."""
        data = self.call(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True
        )["data"]
        return base64.b64decode(data)

    def close(self) -> None:
        os.write(self._write, b'{"id":0,"method":"Browser.close"}\0')
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
