"""A person at the dashboard of a real coordinator with real nodes."""

from __future__ import annotations

import json
import re
import signal
import time
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from process.fleet import Fleet, tiny

from shoal.apps.api.client import ApiClient

from .stage import PAGES, PATIENT_MS, WIDTHS, Looker, address_of, token_of


def test_without_a_token_nothing_is_shown(browser: Browser, fleet: Fleet) -> None:
    person = Looker(browser, address_of(fleet), "wrong")
    expect(person.page.get_by_role("alert")).to_have_text("the bearer token is wrong")
    person.page.get_by_label("Token").fill(token_of(fleet, "view"))
    person.page.get_by_role("button", name="Look").click()
    expect(person.page.locator("main h1")).to_have_text("tiny")
    expect(person.page.get_by_text("A token of scope operate pauses")).to_be_visible()
    person.close()


NARROW = """() => [...document.querySelectorAll('main input:not([type=checkbox]), main select')]
    .filter((field) => field.checkVisibility() && field.offsetWidth < 80).map((field) => field.id || field.name)"""
"""Fields that nobody could read what they typed in."""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_at_every_width(browser: Browser, fleet: Fleet, width: str) -> None:
    """Nothing is wrong for screen readers, nothing is wider than the screen, and no page complains."""
    across, down = WIDTHS[width]
    scheme = "dark" if width == "phone" else "light"
    person = Looker(
        browser,
        address_of(fleet),
        token_of(fleet),
        viewport={"width": across, "height": down},
        color_scheme=scheme,
    )
    for page in PAGES:
        person.go(page, fleet.run)
        expect(person.page.locator(".loading")).to_have_count(0)
        if width != "tablet":
            assert person.axe() == [], (page, width)
        assert person.page.evaluate("document.documentElement.scrollWidth") <= across, (page, width)
        assert person.page.evaluate(NARROW) == [], (page, width)
    assert person.complaints == []
    person.close()


def test_the_loss_moves_while_one_looks(looker: Looker, fleet: Fleet) -> None:
    looker.go("run", fleet.run)
    value = looker.page.locator(".stat", has_text="training").locator("dd")
    before = value.inner_text()
    expect(value).not_to_have_text(before)
    assert looker.page.locator(".chart canvas").count() == 1
    looker.page.get_by_role("button", name="bytes").click()
    looker.page.get_by_label("what sending every step whole would cost").check()
    expect(looker.page.locator(".u-legend")).to_contain_text("every step whole")


def test_where_there_is_nothing_it_is_said(looker: Looker, fleet: Fleet) -> None:
    """With a heading, and nothing wrong for screen readers."""
    for path, words in (
        ("/run/ffffffff/nodes", "This coordinator has no such run."),
        ("/elsewhere", "There is no such page."),
        (f"/run/{fleet.run}/node/ffff", "Node"),
    ):
        looker.page.goto(looker.address + path)
        expect(looker.page.locator("main h1")).to_have_text(words)
        assert looker.axe() == [], path
    looker.complaints.clear()  # The browser itself reports that there is no such node.


def test_keys_are_enough(looker: Looker, fleet: Fleet) -> None:
    looker.go("run", fleet.run)
    looker.page.keyboard.press("Tab")
    assert looker.page.evaluate("document.activeElement.className") == "skip"
    looker.page.get_by_role("link", name="Nodes").focus()
    looker.page.keyboard.press("Enter")
    expect(looker.page.locator("main h1")).to_have_text("Nodes")
    looker.page.get_by_role("button", name="name").focus()
    looker.page.keyboard.press("Enter")
    looker.page.keyboard.press("Enter")
    names = looker.page.locator("tbody tr td:nth-child(2)")
    expect(names).to_have_text(["cleo", "bob", "ada"])
    looker.page.get_by_role("link", name="cleo").focus()
    looker.page.keyboard.press("Enter")
    expect(looker.page.locator("main h1")).to_have_text("cleo")
    expect(looker.page.get_by_text("counted").first).to_be_visible(timeout=PATIENT_MS)


def test_what_is_known_of_a_nodes_word_its_privacy_and_its_key(looker: Looker, fleet: Fleet) -> None:
    page = looker.page
    looker.go(f"node/{fleet.node_id('ada')}", fleet.run)
    expect(page.locator(".stat", has_text="reputation").locator("dd")).to_have_text(re.compile(r"^\d+$"))
    private = {**tiny(membership={"min_nodes": 1}, inner={"kind": "sgd", "lr": 0.1}), "name": "private"}
    with ApiClient(address_of(fleet), token_of(fleet)) as api:
        made = api.submit(json.dumps({**private, "privacy": {"epsilon": 8, "noise": 0.9}}))
        fleet.join("gail", ticket=made.ticket)
        looker.go("nodes", made.run)
        row = page.locator("tbody tr", has_text="gail")
        expect(row).to_contain_text(re.compile(r"\d of 8"))
        looker.go(f"node/{fleet.node_id('gail')}", made.run)
        expect(page.locator(".facts")).to_contain_text(re.compile(r"epsilon [\d.]+ of 8"))
        api.revoke(made.run, "gail", "its owner lost it")
    expect(page.locator(".facts")).to_contain_text("revoked: it cannot come back")
    looker.go("events", made.run)
    expect(page.get_by_text("No key speaks for gail")).to_be_visible()


def test_a_checkpoint_is_exported(looker: Looker, fleet: Fleet, tmp_path: Path) -> None:
    looker.go("checkpoints", fleet.run)
    first = looker.page.get_by_role("button", name=re.compile("Export the state")).first
    with looker.page.expect_download(timeout=PATIENT_MS) as download:
        first.click()
    download.value.save_as(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert any(name.endswith(".safetensors") for name in archive.namelist())


def test_a_run_is_started_from_the_form(looker: Looker, fleet: Fleet, dataset: Path) -> None:
    """From the upload to the first loss. The node that trains it is started by its ticket, as a volunteer would."""
    page = looker.page
    looker.go("new")
    page.locator("#file").set_input_files(dataset)
    expect(page.locator("#file-said")).to_contain_text("poem.txt")
    name = page.locator("details", has_text="model").get_by_label("layers", exact=True)
    name.fill("0")
    expect(page.locator(".wrong").first).to_contain_text("greater than or equal to 1")
    expect(page.get_by_role("button", name="Start")).to_be_disabled()
    page.locator("details", has_text="model").get_by_label("heads", exact=True).fill("7")
    name.fill("1")
    expect(page.locator(".wrong").first).to_contain_text("is not an even multiple of 7 heads")
    for label, value in (("layers", "1"), ("width", "16"), ("heads", "2")):
        page.locator("details", has_text="model").get_by_label(label, exact=True).fill(value)
    page.locator("details", has_text="budget").get_by_label("rounds", exact=True).first.fill("3")
    page.get_by_label("context", exact=True).first.fill("16")
    expect(page.get_by_role("button", name="Start")).to_be_enabled(timeout=PATIENT_MS)
    for figure in ("time", "node hours", "each node sends", "credits"):
        estimated = page.locator(".stats.narrow .stat", has=page.get_by_text(figure, exact=True)).locator(
            "dd"
        )
        expect(estimated).to_have_text(re.compile(r"\d"))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("main h1")).to_have_text("stdlib-gpt")
    page.get_by_role("link", name="Join").click()
    ticket = page.get_by_label("How to join").inner_text().split()[-1]
    fleet.join("dora", ticket=ticket)
    page.get_by_role("link", name="Run", exact=True).click()
    value = page.locator(".stat", has_text="training").locator("dd")
    expect(value).to_have_text(re.compile(r"\d\.\d{4}"))
    page.get_by_role("link", name="Events").click()
    expect(page.get_by_text("Round 0 is sealed with 1 update.")).to_be_visible(timeout=PATIENT_MS)


def test_a_language_model_writes(looker: Looker, fleet: Fleet) -> None:
    """The run of the form above has a tokeniser: its latest saved state goes on from a few words."""
    page = looker.page
    looker.go("run", _run_named(fleet, "stdlib-gpt"))
    page.get_by_label("after").fill("the quick ")
    page.get_by_role("button", name="Write").click()
    expect(page.get_by_label("What the model wrote")).to_have_text(re.compile("^the quick (.|\n)+"))


def test_runs_are_compared_on_one_chart(looker: Looker, fleet: Fleet) -> None:
    """Another run, and what sending every step whole would cost, beside this one."""
    page = looker.page
    other = _run_named(fleet, "stdlib-gpt")
    looker.go("run", fleet.run)
    page.get_by_label("compare with").select_option(other)
    page.get_by_label("what sending every step whole would cost").check()
    for name in ("tiny: training", "stdlib-gpt: training", "every step whole"):
        expect(page.locator(".u-legend")).to_contain_text(name)
    for axis in ("time", "bytes", "steps"):
        page.get_by_role("button", name=axis, exact=True).click()
        expect(page.locator(".chart canvas")).to_have_count(1)


def _run_named(fleet: Fleet, name: str) -> str:
    """Founded by the form; by this test, where it runs alone."""
    with ApiClient(address_of(fleet), token_of(fleet)) as api:
        found = [item.run for item in api.runs() if item.name == name]
        if not found:
            recipe = {**SMALL_TEXT, "name": name}
            found = [api.submit(json.dumps(recipe)).run]
        return str(found[0])


SMALL_TEXT = {
    "model": {"kind": "gpt", "layers": 1, "width": 16, "heads": 2},
    "data": {"source": "stdlib", "max_bytes": 200_000, "context": 16},
    "inner": {"kind": "adamw", "batch_size": 4},
    "budget": {"rounds": 3},
}


def test_a_run_is_paused_changed_and_goes_on(looker: Looker, fleet: Fleet) -> None:
    page = looker.page
    looker.go("run", fleet.run)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".title .badge")).to_have_text("paused")
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(".title .badge")).to_have_text("running")
    page.get_by_label("to", exact=True).fill("90000")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator(".stat", has_text="round").first).to_contain_text("/90000")


def test_a_killed_node_turns_red_with_the_reason(looker: Looker, fleet: Fleet) -> None:
    looker.go("nodes", fleet.run)
    row = looker.page.locator("tr", has_text="bob")
    expect(row.locator(".badge.good, .badge.calm")).to_be_visible(timeout=PATIENT_MS)
    fleet.nodes["bob"].kill()
    expect(row.locator(".badge.bad")).to_have_text("silent")
    expect(row).to_contain_text(re.compile("its connection broke|unheard for longer"))
    looker.page.get_by_role("link", name="Events").click()
    expect(looker.page.get_by_text(re.compile("bob .* is lost")).first).to_be_visible(timeout=PATIENT_MS)
    fleet.join("bob")


def test_the_page_outlives_its_coordinator(looker: Looker, fleet: Fleet) -> None:
    """On the same port, the coordinator comes back, and the open page goes on without a reload."""
    looker.go("run", fleet.run)
    port = address_of(fleet).rpartition(":")[2]
    assert fleet.coordinator is not None
    fleet.coordinator.signal(signal.SIGTERM)
    fleet.coordinator.ended(PATIENT_MS / 1000)
    expect(looker.page.locator(".line.lost")).to_be_visible(timeout=PATIENT_MS)
    began = time.time() * 1000
    fleet.serve(port=int(port))
    expect(looker.page.locator(".line")).to_have_count(0)
    value = looker.page.locator(".stat", has_text="round").first.locator("dd")
    expect(value).not_to_have_text(value.inner_text())
    loaded = looker.page.evaluate("performance.timeOrigin")
    assert loaded < began
