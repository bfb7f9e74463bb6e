"""A headless Chromium, driven over its DevTools pipe; nothing but the standard library."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip

TIMEOUT_S = 60


def find() -> str | None:
    """Return the browser's path. A snap cannot read files outside of the home folder."""
    for name in ("chromium", "google-chrome"):
        path = shutil.which(name)
        if path is not None and not os.path.realpath(path).endswith("/snap"):
            return path
    return None


class Page:
    """One tab. ``problems`` collects what the console and the network complain about."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading = reading
        self.writing = writing
        self.buffer = b""
        self.number = 0
        self.session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.loaded = False

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            if not select.select([self.reading], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser says nothing")
            data = os.read(self.reading, 1 << 20)
            if not data:
                raise EOFError("the browser is gone")
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, data = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(data["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(data["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(data["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded = True

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(self, url: str) -> None:
        """Load an address and wait until it is there."""
        self.loaded = False
        self.send("Page.navigate", url=url)
        while not self.loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """Evaluate an expression and return its value, which must be plain data."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the window's size in pixels, and whether its person prefers dark colors."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        where = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                type=kind, x=where[0], y=where[1], button="left", clickCount=1,
            )  # fmt: skip

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Write the page as PNG, down to ``height`` pixels or to its end."""
        area = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0, "y": 0, "scale": 1, "width": area["width"], "height": height or area["height"],
        }  # fmt: skip
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


def _high_pipe() -> list[int]:
    """Return a pipe whose ends are not the descriptors that the browser's will have."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


@contextlib.contextmanager
def page(browser: str, profile: Path) -> Iterator[Page]:
    """Start a browser with a fresh profile folder and the network off; yield its page."""
    child_reads, writing = _high_pipe()
    reading, child_writes = _high_pipe()
    with contextlib.ExitStack() as stack:
        # The pipe is at the descriptors 3 and 4 of the browser.
        process = subprocess.Popen(
            [
                "bash", "-c", f'exec "$@" 3<&{child_reads} 4>&{child_writes}', "bash",
                browser, *SWITCHES, f"--user-data-dir={profile}", "about:blank",
            ],
            pass_fds=(child_reads, child_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_reads)
        os.close(child_writes)
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)

        def stop() -> None:
            process.kill()
            process.wait()

        stack.callback(stop)
        tab = Page(reading, writing)
        (target,) = (t for t in tab.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = tab.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.send(f"{domain}.enable")
        tab.send(
            "Network.emulateNetworkConditions",
            offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1,
        )  # fmt: skip
        yield tab
