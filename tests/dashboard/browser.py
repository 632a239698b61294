"""Drives a headless Chromium by the WebDriver protocol, which chromedriver speaks over HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WITHIN_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")


def missing() -> str:
    """Why no browser can be driven here; empty when one can."""
    if not any(map(shutil.which, NAMES)):
        return f"no browser is installed: none of {', '.join(NAMES)} is on the PATH"
    return "" if shutil.which("chromedriver") else "chromedriver is not installed"


class Browser:
    """One browser window."""

    def __init__(self, driver: str, scratch: Path, width: int, height: int) -> None:
        program = next(found for name in NAMES if (found := shutil.which(name)))
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        options = {"binary": program, "args": [*arguments, f"--user-data-dir={scratch}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._driver = driver
        self._session = ""
        self._session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the script returns; arguments[0] is the first of `arguments`."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def cdp(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def prefer(self, scheme: str) -> None:
        """The user likes "light" or "dark"."""
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    def console(self) -> list[str]:
        """Warnings and errors since the last call."""
        found = self._ask("POST", "/se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] in ("WARNING", "SEVERE")]

    def screenshot(self) -> bytes:
        return base64.b64decode(self._ask("GET", "/screenshot"))

    def close(self) -> None:
        self._ask("DELETE", "")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        url = self._driver + (f"/session/{self._session}{path}" if self._session else path)
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
            return json.load(answer)["value"]


@contextlib.contextmanager
def browsing(scratch: Path, width: int = 1200, height: int = 900) -> Iterator[Browser]:
    """A browser window, and its driver, which end with this."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            port = next(
                line.rsplit(" ", 1)[1].strip(".\n") for line in driver.stdout if "started successfully on port" in line
            )
            browser = Browser(f"http://127.0.0.1:{port}", scratch, width, height)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
