"""The report is legible in a browser, and runs no script there."""

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from reports import reported

from tramark.report.words import verdict_sentence
from tramark.tracing.verdict import Verdict
from tramark.vault.store import Vault

Verdicts = dict[str, Verdict]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# What a reader would see: run in a copy of the page, since the page itself allows no script.
LOOK = """<script>
const rgb = c => (c.match(/[\\d.]+/g) || [0, 0, 0]).slice(0, 3).map(Number);
const light = c => rgb(c).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const paper = light(getComputedStyle(document.body).backgroundColor);
const texts = [...document.querySelectorAll("h1,h2,h3,p,td,th,li,span,small,code,svg text,footer")];
const contrast = texts.map(e => light(getComputedStyle(e)[e.ownerSVGElement ? "fill" : "color"]))
  .map(l => (Math.max(l, paper) + .05) / (Math.min(l, paper) + .05));
const outside = [...document.querySelectorAll("svg text")].filter(t => {
  const b = t.getBBox(), v = t.ownerSVGElement.viewBox.baseVal;
  return t.ownerSVGElement.getBoundingClientRect().width &&
    (b.x < 0 || b.y < 0 || b.x + b.width > v.width || b.y + b.height > v.height) }).map(t => t.textContent);
const found = { paper, contrast: Math.min(...contrast), outside,
  unlabelled: document.querySelectorAll("img:not([alt])").length,
  pictures: [...document.images].map(i => i.naturalWidth), wide: document.documentElement.scrollWidth > innerWidth,
  charts: [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect())
    .filter(b => b.width).map(b => Math.round(b.height)), cut: [...document.querySelectorAll("svg, .strip, pre")]
    .filter(e => e.tagName != "PRE" && e.getBoundingClientRect().right > innerWidth).length,
  first: document.querySelector("h1").getBoundingClientRect().bottom, text: document.body.innerText };
document.body.innerHTML = "<pre id=found></pre>"; document.getElementById("found").textContent = btoa(
  unescape(encodeURIComponent(JSON.stringify(found))));
</script></body>"""


def browse(page: Path, profile: Path, *options: str) -> str:
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--user-data-dir={profile}", "--dump-dom", *options, page.as_uri()),
    ]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()


def seen(page: str, folder: Path, *, dark: bool = False, width: int = 1000) -> dict[str, Any]:
    copy = folder / "copy.html"
    without = re.sub("<meta http-equiv.*?>", "", page)
    copy.write_text(without.replace("</body>", LOOK), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    dom = browse(copy, folder / "profile", scheme, f"--window-size={width},900")
    [found] = re.findall('<pre id="found">(.*?)</pre>', dom)
    return dict(json.loads(base64.b64decode(found)))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH to look at the report with")
@pytest.mark.parametrize("case", ["client", "second look", "several", "company", "nobody"])
def test_the_report_in_a_browser(vault: Vault, verdicts: Verdicts, tmp_path: Path, case: str) -> None:
    verdict = verdicts[case]
    page = reported(vault, verdict, tmp_path)
    found = seen(page, tmp_path)
    headline, lead = verdict_sentence(verdict)
    assert headline in found["text"]
    assert lead in found["text"]
    assert found["first"] < 250
    assert found["pictures"] == [12] * verdict.queries
    assert len(found["charts"]) == 2
    assert all(height > 150 for height in found["charts"])
    assert found["outside"] == []
    assert (found["wide"], found["cut"], found["unlabelled"]) == (False, 0, 0)
    assert found["contrast"] >= 4.5
    assert found["paper"] > 0.8
    narrow_and_dark = seen(page, tmp_path, dark=True, width=500)
    assert narrow_and_dark["paper"] < 0.05
    assert narrow_and_dark["contrast"] >= 4.5
    assert (narrow_and_dark["wide"], narrow_and_dark["cut"]) == (False, 0)
    assert narrow_and_dark["outside"] == []
    assert len(narrow_and_dark["charts"]) == 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH to look at the report with")
def test_no_script_runs_in_a_report(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    page = reported(vault, verdicts["client"], tmp_path)
    marked = tmp_path / "marked.html"
    marked.write_text(page.replace("</body>", "<script>document.title = 'owned'</script></body>"), encoding="utf-8")
    assert "<title>This model carries the mark of hospital-3.</title>" in browse(marked, tmp_path / "profile")
