"""Takes the pictures of docs/screenshots: every page of a run in progress, light and dark, desktop and phone.

Run it in tests/: python -m browser.screenshots FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image
from process.fleet import Fleet, tiny, with_deadline
from process.processes import eventually

from .stage import PAGES, WIDTHS, Looker, address_of, open_browser, token_of

NAMES = ("ada", "bob", "cleo", "dora")
COLOURS = 128


def main(target: Path) -> None:
    recipe = tiny(inner={"batch_size": 64}, evaluation={"every": 1}, storage={"snapshot_every": 3})
    recipe["strategy"] = {**recipe["strategy"], "schedule": {"steps": 40}, **with_deadline(30)}
    recipe["audit"] = {"rate": 0.2}
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet, open_browser() as browser:
        fleet.serve({**recipe, "name": "digits by friends", "budget": {"rounds": 500}})
        for name in NAMES:
            fleet.join(name)
        for name in NAMES:
            fleet.contributes(name)
        fleet.seals_after(fleet.length() - 1, count=12, within_s=300)
        fleet.nodes["dora"].kill()
        for scheme in ("light", "dark"):
            for width in ("desktop", "phone"):
                across, down = WIDTHS[width]
                view = {"width": across, "height": down}
                person = Looker(
                    browser, address_of(fleet), token_of(fleet), viewport=view, color_scheme=scheme
                )
                for page in (*PAGES, "node"):
                    _take(person, fleet, page, target / f"{page}-{width}-{scheme}.png")
                person.close()


def _take(person: Looker, fleet: Fleet, page: str, path: Path) -> None:
    person.go(f"node/{fleet.node_id('ada')}" if page == "node" else page, fleet.run)
    eventually(lambda: person.page.locator(".loading").count() == 0, 120, f"{page} is loaded")
    person.page.wait_for_timeout(700)  # The map comes to rest.
    person.page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
