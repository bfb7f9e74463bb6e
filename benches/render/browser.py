# SPDX-License-Identifier: Apache-2.0
"""A page in a headless Chromium: the installed one, driven by Playwright, with the network off."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_MS = 60_000


def find() -> str | None:
    """Return the path of the browser, or None.

    A Chromium from a snap does not count: it cannot read files outside the home folder.
    """
    for name in ("chromium", "google-chrome"):
        path = shutil.which(name)
        if path is not None and not os.path.realpath(path).endswith("/snap"):
            return path
    return None


class Page:
    """One tab.

    Attributes:
        problems: what the console printed, and every error that no script caught.
        requests: the addresses that the page asked for.
    """

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.problems: list[str] = []
        self.requests: list[str] = []
        tab.set_default_timeout(TIMEOUT_MS)
        tab.on("console", lambda message: self.problems.append(message.text))
        tab.on("pageerror", lambda error: self.problems.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, url: str) -> None:
        """Load an address, and wait until it has loaded."""
        self.tab.goto(url)

    def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression; return its value, which must be plain data."""
        return self.tab.evaluate(script)

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the window's size in pixels, and whether the reader prefers dark colors."""
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.emulate_media(color_scheme="dark" if dark else "light")

    def click(self, selector: str) -> None:
        """Scroll to the first element that matches, and click its middle."""
        self.tab.locator(selector).first.click()

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """Write the page as PNG, down to ``height`` pixels or to its end."""
        size = self.run("[document.documentElement.scrollWidth, document.body.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1]}
        self.tab.screenshot(path=path, full_page=True, clip=clip, animations="disabled")


@contextlib.contextmanager
def page(browser: str) -> Iterator[Page]:
    """Start the browser at a path, with a fresh profile; yield its page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--hide-scrollbars"]
        )
        try:
            yield Page(started.new_context(offline=True).new_page())
        finally:
            started.close()
