"""Headless Chromium, driven over a pipe by the DevTools protocol: pages are opened, pointed at, typed at and looked at.

No package is needed for it: messages are JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import PATIENCE_S, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
KEYS = {"ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37, "Escape": 27, "Tab": 9, "Enter": 13, "End": 35}

# Chromium reads commands at descriptor 3 and writes answers at 4
AT_3_AND_4 = """
import fcntl, os, sys
for number, wanted in [(fcntl.fcntl(int(x), fcntl.F_DUPFD, 10), i + 3) for i, x in enumerate(sys.argv[1:3])]:
    os.dup2(number, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab. Use it as a context manager: leaving it ends the browser."""

    def __init__(self, profile: Path) -> None:
        reads, to_browser = os.pipe()
        from_browser, writes = os.pipe()
        command = [
            sys.executable, "-c", AT_3_AND_4, str(reads), str(writes), str(CHROMIUM), "--headless=new", "--no-sandbox",
            "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync",
            "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
            f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            pass_fds=(reads, writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._to, self._from = to_browser, from_browser
        self._left, self._count, self._session = b"", 0, ""
        self.messages: list[str] = []  # by console and page: errors and all else

    def __enter__(self) -> Self:
        try:
            found = self.send("Target.getTargets")["targetInfos"]
            tab = next(t["targetId"] for t in found if t["type"] == "page")
            self._session = self.send("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events that come before it are looked through for what the console says."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            data = os.read(self._from, 1 << 16) if ready else b""
            assert data, "the browser ended or hangs"
            self._left += data
        text, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(message["params"]))
        return message

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        """Opens a page in a window of that size, as a phone below 500 pixels, and waits until it is there."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=width < 500)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        assert wait_until(lambda: bool(self.js(condition))), f"never so: {condition}"

    def middle(self, selector: str) -> tuple[float, float]:
        """Where the middle of an element is in the window; it is scrolled into it."""
        self.js(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it says so then
        x, y = self.js(
            f"(r => [r.left + r.width / 2, r.top + r.height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return float(x), float(y)

    def point(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def key(self, name: str) -> None:
        text = "\r" if name == "Enter" else ""  # what a button takes for a click
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            code = KEYS[name]
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, text=text)

    def picture(self, path: Path, *, most: int | None = None) -> None:
        """The whole page as PNG, or so many pixels from its top."""
        height = min(self.js("document.documentElement.scrollHeight"), most or 1 << 20)
        width = self.js("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))
