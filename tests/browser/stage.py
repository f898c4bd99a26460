"""A browser, and a coordinator with real nodes for it to look at.

In flow a folder; out flow pages of a real chromium. Invariant: chromium is found or the tests fail: nothing is skipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from process.fleet import Fleet

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
PAGES = ("run", "nodes", "map", "checkpoints", "credit", "events", "join", "new")
PATIENT_MS = 120_000
"""How long anything may take on a slow machine with other work: every wait ends when the thing happens."""
expect.set_options(timeout=PATIENT_MS)
WIDTHS = {"desktop": (1280, 800), "tablet": (820, 1000), "phone": (390, 800)}


def chromium_path(playwright: Playwright) -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    own = Path(playwright.chromium.executable_path)
    assert own.is_file(), "there is no chromium here: make test installs it"
    return str(own)


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(playwright),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=PATIENT_MS,
        )
        try:
            yield browser
        finally:
            browser.close()


class Looker:
    """One person at one coordinator's dashboard."""

    def __init__(self, browser: Browser, address: str, token: str, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(accept_downloads=True, **options)
        self.context.set_default_timeout(PATIENT_MS)
        self.page: Page = self.context.new_page()
        self.address = address
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{address}/#token={token}")

    def _heard(self, message: Any) -> None:
        # A coordinator that restarts is reported by the browser itself, and is no fault of the page's.
        if (
            message.type == "error"
            and "ERR_CONNECTION" not in message.text
            and "WebSocket" not in message.text
        ):
            self.complaints.append(message.text)

    def go(self, page: str, run: str = "") -> None:
        target = "/new" if page == "new" else f"/run/{run}" if page == "run" else f"/run/{run}/{page}"
        self.page.goto(self.address + target)
        self.page.locator("main h1").wait_for()

    def axe(self) -> list[str]:
        """What is wrong for those who do not see the page."""
        self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{item['id']}: {node['target']} {node['failureSummary']}"
            for item in found["violations"]
            for node in item["nodes"]
        ]

    def close(self) -> None:
        self.context.close()


def token_of(fleet: Fleet, scope: str = "admin") -> str:
    return (fleet.home / "coordinator" / f"{scope}-token").read_text().strip()


def address_of(fleet: Fleet) -> str:
    return (fleet.home / "coordinator" / "api-address").read_text().strip()
