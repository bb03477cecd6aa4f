"""The desk in a real browser: a whole trace, by mouse and by keyboard, on a wide screen and on a phone."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from desks import Scene

from tramark.evidence.verify import verify_statement

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH to look at the desk with")

PATIENCE = 60_000
"""Milliseconds after which something has gone wrong, also on a busy machine."""

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address(made: Scene) -> Iterator[str]:
    """The address that `tramark web` prints."""
    command = [sys.executable, "-c", "from tramark.cli import main; main()", "web", str(made.vault), "--no-browser"]
    with subprocess.Popen(
        [*command, "--largest-upload", "2"], stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "200"}
    ) as server:
        assert server.stderr is not None
        try:
            yield next(found[0] for line in server.stderr if (found := re.search(r"http\S+", line)))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(20)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: "Browser", address: str) -> "Iterator[Page]":
    """A page that was opened with the token, on which nothing may go wrong unseen."""
    with browser.new_context(viewport={"width": 1000, "height": 800}) as context:
        context.set_default_timeout(PATIENCE)
        opened, wrong = context.new_page(), list[str]()
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        opened.goto(address)
        assert "token" not in opened.url
        yield opened
        assert wrong == []


def faults(page: "Page") -> list[str]:
    """What axe-core finds to be seriously wrong with a page, in both schemes and on a phone."""
    axe = pytest.importorskip("axe_playwright_python")
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text())
    found: list[str] = []
    usual = page.viewport_size
    assert usual is not None
    for size, scheme in ((usual, "light"), (PHONE, "dark")):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        result: dict[str, Any] = page.evaluate("() => axe.run()")
        found += [
            f"{scheme}: {one['id']}: {one['nodes'][0]['html']}"
            for one in result["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        if page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{scheme}: wider than the window at {size['width']} pixels")
    page.set_viewport_size(usual)
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    return found


def test_a_suspect_is_traced_from_upload_to_statement(page: "Page", made: Scene) -> None:
    page.locator("summary").first.click()
    assert faults(page) == []
    page.set_input_files("#file", made.leaked)
    assert "leaked model.safetensors" in page.inner_text(".chosen")
    page.get_by_role("button", name="Look at it").click()
    page.get_by_text("Before the first question").wait_for()
    assert page.locator("[aria-labelledby=as-seen] img").count() == 8
    assert faults(page) == []
    page.get_by_role("button", name="Begin the trace").click()
    page.locator("#chart .leader, #chart .crossed").first.wait_for()
    page.get_by_role("link", name="Read the report").wait_for()
    assert page.inner_text("h1") == "This model carries the mark of mayo."
    assert page.evaluate("() => document.activeElement.id") == "headline"
    assert page.inner_text("#leader") == "mayo"
    assert int(page.inner_text("#count")) >= 8
    assert page.locator("#chart .crossed").count() == 1
    assert faults(page) == []
    page.get_by_role("link", name="Read the report").click()
    page.get_by_text("How the evidence grew").wait_for()
    assert faults(page) == []
    page.get_by_text("Name the auditor, add notes").click()
    page.get_by_label("Auditor").fill("Ada")
    with page.expect_download() as download:
        page.get_by_role("button", name="Report", exact=True).click()
    assert ">Ada<" in Path(download.value.path()).read_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Signed statement").click()
    assert re.fullmatch(r"case-\d+-statement.json", download.value.suggested_filename)
    assert verify_statement(Path(download.value.path()).read_bytes()).clients == ("mayo",)
    for name in ("Cases", "Vault"):
        page.get_by_role("link", name=name, exact=True).click()
        page.locator(f"nav a[aria-current]:text('{name}')").wait_for()
        assert faults(page) == []


def test_everything_can_be_done_by_keyboard(page: "Page", made: Scene) -> None:
    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                return
        raise AssertionError(f"no way to {selector} by keyboard")

    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    tab_to("#file")
    # The browser's own window to choose a file does not open without a screen.
    page.set_input_files("#file", made.leaked)
    tab_to("summary")
    page.keyboard.press("Enter")
    tab_to("#labels")
    page.keyboard.type(json.dumps([f"digit {label}" for label in range(10)]))
    tab_to("button.main")
    page.keyboard.press("Enter")
    page.get_by_text("Before the first question").wait_for()
    assert "digit 3 → 3" in page.inner_text("main")
    tab_to("button.main")
    page.keyboard.press("Enter")
    page.locator("#after:not([hidden])").wait_for()
    # The names say nothing of labels that are numbers: the suspect gives no answer that is known.
    assert page.evaluate("() => document.activeElement.id") == "headline"
    tab_to("#open")
    page.keyboard.press("Enter")
    page.get_by_text("How it was fed and read").wait_for()


def test_a_wrong_token_and_a_file_that_is_too_large(
    browser: "Browser", page: "Page", address: str, tmp_path: Path
) -> None:
    with browser.new_context() as stranger:
        refused = stranger.new_page()
        answer = refused.goto(address.partition("token=")[0] + "token=guessed")
        assert answer is not None
        assert answer.status == 403
        assert "somebody else’s" in refused.inner_text("h1")
        assert faults(refused) == []
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(3 << 20))
    page.set_input_files("#file", large)
    assert "large.onnx is too large. Up to 2 MiB are taken here." in page.inner_text("[role=alert]")
    page.get_by_role("button", name="Look at it").click()
    assert page.url.endswith("/")
    assert page.inner_text("h1") == "Who leaked it?"
