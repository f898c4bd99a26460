"""`shoal bench dashboard`: from a node's word to pixels.

In flow how many nodes beat how often; out flow the 95th percentiles of the time from the moment a node sent its
heartbeat to the moment after the browser painted it. Invariant: measured in a real browser from the outside: every
heartbeat says when it was sent, and a script reads it off the table after the frame that shows it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from shoal.apps.bench.standing import Standing, standing
from shoal.apps.progress import lasting
from shoal.base.errors import ShoalError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# For every row that changed: how old is what it says, once the frame with it is on the screen?
_WATCH = """
() => {
  window.painted = [];
  const rows = document.querySelector('.rows tbody');
  const channel = new MessageChannel();
  let waiting = [];
  let asked = false;
  channel.port1.onmessage = () => {
    const now = performance.timeOrigin + performance.now();
    for (const sent of waiting) window.painted.push(now - sent);
    waiting = [];
    asked = false;
  };
  const cells = new Map();
  new MutationObserver(() => {
    for (const row of rows.querySelectorAll('tr[data-row]')) {
      const text = row.children[3].textContent;
      if (cells.get(row.dataset.row) === text) continue;
      const known = cells.has(row.dataset.row);
      cells.set(row.dataset.row, text);
      if (known && text.startsWith('t=')) waiting.push(Number(text.slice(2)));
    }
    if (waiting.length && !asked) {
      asked = true;
      requestAnimationFrame(() => channel.port2.postMessage(0));
    }
  }).observe(rows, {subtree: true, childList: true, characterData: true});
}
"""


def measure(seconds: float, many_every_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """The two figures, each over so many seconds: 50 nodes at 10 Hz, and 1,000 nodes beating every `many_every_s`."""
    few = _painted(50, 0.1, seconds, say)
    many = _painted(1000, many_every_s, seconds, say)
    return {
        "p95_ms_50_nodes": _quantile(few, 0.95),
        "p95_ms_1000_nodes": _quantile(many, 0.95),
        "p50_ms_50_nodes": _quantile(few, 0.50),
        "p50_ms_1000_nodes": _quantile(many, 0.50),
        "painted_50_nodes": len(few),
        "painted_1000_nodes": len(many),
        "seconds": seconds,
        "every_s_50_nodes": 0.1,
        "every_s_1000_nodes": many_every_s,
        "load_average": os.getloadavg()[0],
    }


def _painted(nodes: int, every_s: float, seconds: float, say: Callable[[str], None]) -> list[float]:
    with standing(nodes, every_s, say) as coordinator:
        return sorted(_look(coordinator, seconds, say))


def _look(coordinator: Standing, seconds: float, say: Callable[[str], None]) -> list[float]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise _missing("the Python package playwright", "pip install playwright") from None
    browser_path = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser_path is None:
        raise _missing("a chromium browser", "install it, e.g. with apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=browser_path, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(f"{coordinator.address}/run/{coordinator.runs[0]}/nodes#token={coordinator.token}")
            page.locator("tr[data-row]").nth(10).wait_for(timeout=30_000)
            page.evaluate(_WATCH)
            say(f"a page is open; measuring for {seconds:g} s")
            with lasting(seconds):
                page.wait_for_timeout(seconds * 1000)
            found: list[float] = page.evaluate("window.painted")
        finally:
            browser.close()
    if not found:
        raise ShoalError("SH-BENCH-01", "the page painted nothing new", "see whether the coordinator runs")
    return found


def _quantile(ranked: list[float], part: float) -> float:
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]


def _missing(what: str, next_step: str) -> ShoalError:
    return ShoalError("SH-BENCH-01", f"this benchmark needs {what}", next_step)
