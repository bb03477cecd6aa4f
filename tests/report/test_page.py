"""The report says what the verdict says, shows it legibly in a browser, and gives nothing away."""

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tramark.evidence.commitment import canonical
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns, WafflePatterns
from tramark.keys.sources import Tokens
from tramark.report.charts import growth
from tramark.report.page import report_page, verdict_sentence, write_report
from tramark.suspects.json_api import png
from tramark.tracing.interview import Step
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from traces import Oracle, hidden, in_company, leaked_by, ring, vault_of

from tramark.evidence.looks import Company
from tramark.evidence.statistics import LOOKS
from tramark.evidence.verify import verify_bundle
from tramark.tracing.bundle import make_bundle
from tramark.vault.store import Vault

SUSPECT = "https://models.example/v2/scan <b>beta</b>"


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    with vault_of(ring(Patterns((1, 12, 12))), tmp_path_factory.mktemp("report")) as made:
        yield made


def noisy(keyring: Keyring) -> Verdict:
    """A verdict that took a second look."""
    verdicts = (trace(leaked_by(keyring, "hospital-2", noise=0.5, seed=seed), keyring) for seed in range(50))
    return next(verdict for verdict in verdicts if verdict.clients and verdict.queries > keyring.questions)


CASES: dict[str, Callable[[Keyring], Verdict]] = {
    "client": lambda keyring: trace(leaked_by(keyring, "hospital-3", noise=0.2, seed=4), keyring),
    "second look": noisy,
    "several": lambda keyring: trace(
        leaked_by(keyring, "hospital-1", "hospital-8"), keyring, exhaustive=True, false_accusation=0.01
    ),
    "company": in_company,
    "nobody": lambda keyring: trace(Oracle(keyring, lambda q, v: 0), keyring),
    "inconclusive": lambda keyring: trace(leaked_by(keyring, "hospital-3"), keyring, budget=6),
    "no answers": lambda keyring: trace(Oracle(keyring, lambda q, v: -1), keyring),
    "paper": lambda keyring: trace(leaked_by(keyring, "hospital-3", noise=0.4), keyring, rule="paper"),
}


def reported(vault: Vault, case: str, folder: Path) -> tuple[Verdict, str]:
    verdict = CASES[case](vault.keyring)
    bundle = make_bundle(vault, verdict, suspect=SUSPECT) if verdict.false_accusation_bound else None
    path = write_report(folder, verdict, vault.keyring, suspect=SUSPECT, bundle=bundle)
    assert path == folder / "report.html"
    return verdict, path.read_text(encoding="utf-8")


HEADLINES = {
    "client": "This model was leaked by hospital-3.",
    "second look": "This model was leaked by hospital-2.",
    "nobody": "Nobody is accused: this model shows no client’s mark.",
    "inconclusive": "It cannot be told who leaked this model.",
    "no answers": "It cannot be told who leaked this model.",
    "paper": "This model answers most like the model of hospital-3.",
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_says_the_verdict_first_and_gives_nothing_away(vault: Vault, tmp_path: Path, case: str) -> None:
    verdict, page = reported(vault, case, tmp_path)
    headline, lead = verdict_sentence(verdict)
    assert headline == HEADLINES.get(case, headline)
    assert re.findall("<h1>(.*?)</h1>", page) == [headline]
    assert f'<p class="lead">{lead}</p>' in page
    assert "https://models.example/v2/scan &lt;b&gt;beta&lt;/b&gt;" in page
    assert page.count("<li title=") == verdict.queries
    assert "How sure is this, and why" in page
    assert "How to check this" in page
    # Other clients' matches, but nobody's answers: those of the accused only where they differ from the suspect's.
    whole = page.encode()
    assert not [secret for secret in hidden(vault, verdict) if secret in whole]
    revealed = set(re.findall(r'aria-label="(hospital-\d+)’s answer', page))
    assert revealed == set(verdict.clients)
    if verdict.false_accusation_bound:
        assert verify_bundle((tmp_path / "evidence.json").read_bytes()).clients == verdict.clients
        assert "tramark evidence verify evidence.json" in page
    else:
        assert not (tmp_path / "evidence.json").exists()
        assert "no signed bundle" in page


def test_several_are_named_with_their_letters(vault: Vault, tmp_path: Path) -> None:
    verdict, page = reported(vault, "several", tmp_path)
    assert sorted(verdict.clients) == ["hospital-1", "hospital-8"]
    assert verdict_sentence(verdict)[0] == f"This model was leaked by {' and '.join(verdict.clients)}."
    assert "at most 1 %." in page
    for letter, client in zip("AB", verdict.clients, strict=True):
        assert f"<b>{letter} {client}</b>" in page
        assert page.count(f"✓{letter}<") == verdict_matches(verdict, vault.keyring.key(client).answers)


def verdict_matches(verdict: Verdict, answers: tuple[int, ...]) -> int:
    """Queries (not questions) answered as a client's model was taught; questions here are numbered as in use."""
    return sum(answers[step.question] == step.answer for step in verdict.transcript)


def test_ticks_are_where_the_answer_is_the_accuseds(vault: Vault, tmp_path: Path) -> None:
    verdict, page = reported(vault, "client", tmp_path)
    assert page.count("✓<") == verdict.matches["hospital-3"] < verdict.queries
    assert page.count("✗<") == verdict.queries - verdict.matches["hospital-3"]
    assert "The probability that a procedure like this accuses any innocent client is at most 0.0001 %." in page
    for step in verdict.transcript:
        raw = vault.keyring.raw([step.question], "held-out")[0, step.variant]
        assert base64.b64encode(png(raw)).decode() in page


@pytest.mark.parametrize("case", ["client", "second look", "several", "company", "nobody"])
def test_the_evidence_drawn_is_the_evidence_weighed(vault: Vault, case: str) -> None:
    verdict = CASES[case](vault.keyring)
    looks = growth(verdict, vault.keyring)
    assert max(look.queries[-1] for look in looks) == verdict.queries
    company = Company(10, 10, false_accusation=1e-6, share=LOOKS.company)
    for step in verdict.transcript:
        if step.variant == 0:
            company.add(vault.keyring.codebook()[:, step.question].numpy(), step.answer)
    for client in vault.keyring.clients:
        lines = [look.lines[look.clients.index(client)] for look in looks if client in look.clients]
        assert len(lines) == (2 if case in ("second look", "several") or client in verdict.by_company else 1)
        if client in verdict.clients:
            assert max(line.max() for line in lines) >= np.log10(verdict.e_values[client]) - 1e-9
        else:
            # What the others' company adds is drawn for the accused alone.
            weighed = [line[-1] for line in lines]
            if case != "client":
                weighed.append(company.log_e()[vault.keyring.clients.index(client)] / np.log(10))
            assert np.log10(verdict.e_values[client]) == pytest.approx(max(weighed))


def test_many_clients_are_a_band_and_a_histogram() -> None:
    keyring = ring(clients=[f"client {i}" for i in range(3000)])
    verdict = trace(leaked_by(keyring, "client 77"), keyring)
    page = report_page(verdict, keyring, suspect="model.onnx")
    assert "All 3,000 clients" in page
    assert "the other 2,999 clients" in page
    assert len(set(re.findall(r"client \d+", page))) == 20
    assert len(page) < 100_000
    counts = [int(count.replace(",", "")) for count in re.findall(r"matches: ([\d,]+) clients,", page)]
    assert sum(counts) == 3000


def test_a_federation_of_one() -> None:
    keyring = ring(clients=["alone"])
    page = report_page(trace(leaked_by(keyring, "alone"), keyring), keyring, suspect="model.onnx")
    assert "This model was leaked by alone." in page
    assert 'class="band"' not in page
    assert "other" not in re.findall('<ul class="legend">(.*?)</ul>', page)[0]


def test_names_are_text_never_markup() -> None:
    evil = "<script>document.title='owned'</script>\"'&"
    keyring = ring(Tokens(40, 500), clients=[evil, "b"])
    page = report_page(
        trace(leaked_by(keyring, evil), keyring), keyring, suspect=evil, notes=evil, time="2026-01-01T00:00:00Z"
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 3
    assert "2026-01-01 00:00:00 UTC" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "http://" not in page


def test_label_answers_get_a_page_without_a_bound() -> None:
    keyring = Keyring.generate(
        clients=["a", "b", "c"],
        classes=4,
        source=WafflePatterns((3, 16, 16)),
        assignment="label",
        train_variants=2,
        held_out_variants=3,
    )
    transcript = tuple(Step(q, v, 1) for q in range(3) for v in range(3))
    verdict = Verdict(
        "client", ("b",), 9, None, {}, {"a": 1.0, "b": 0.05, "c": 1.0}, {"a": 0, "b": 3, "c": 0}, 3, None, transcript
    )
    page = report_page(verdict, keyring, suspect="model.onnx")
    assert "A hint, not a proof" in page
    assert "comparison with unmarked models" in page
    assert "How the evidence grew" not in page
    assert (page.count("✓<"), page.count("✗<")) == (3, 0)


def test_a_bundle_of_another_verdict_is_refused(vault: Vault, tmp_path: Path) -> None:
    bundle = make_bundle(vault, CASES["client"](vault.keyring), suspect=SUSPECT)
    with pytest.raises(ValueError, match="another verdict"):
        write_report(tmp_path, CASES["nobody"](vault.keyring), vault.keyring, suspect=SUSPECT, bundle=bundle)
    assert not list(tmp_path.iterdir())


def test_a_page_without_a_bundle_leaves_no_old_one_beside_it(vault: Vault, tmp_path: Path) -> None:
    reported(vault, "client", tmp_path)
    assert canonical(json.loads((tmp_path / "evidence.json").read_bytes())) == (tmp_path / "evidence.json").read_bytes()
    reported(vault, "paper", tmp_path)
    assert not (tmp_path / "evidence.json").exists()


def test_large_pictures_are_made_small() -> None:
    keyring = ring(Patterns((3, 224, 160)), questions=8, pool=8, classes=10)
    verdict = trace(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10)), keyring, budget=2)
    page = report_page(verdict, keyring, suspect="model.onnx")
    pictures = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", page)]
    sizes = [(int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) for data in pictures]
    assert sizes == [(69, 96)] * 2


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
  return b.x < 0 || b.y < 0 || b.x + b.width > v.width || b.y + b.height > v.height }).map(t => t.textContent);
const found = { paper, contrast: Math.min(...contrast), outside,
  unlabelled: document.querySelectorAll("img:not([alt])").length,
  pictures: [...document.images].map(i => i.naturalWidth), wide: document.documentElement.scrollWidth > innerWidth,
  charts: [...document.querySelectorAll("svg")].map(s => Math.round(s.getBoundingClientRect().height)),
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
def test_the_report_in_a_browser(vault: Vault, tmp_path: Path, case: str) -> None:
    verdict, page = reported(vault, case, tmp_path)
    found = seen(page, tmp_path)
    headline, lead = verdict_sentence(verdict)
    assert headline in found["text"]
    assert lead in found["text"]
    assert found["first"] < 250
    assert found["pictures"] == [12] * verdict.queries
    assert len(found["charts"]) == 2
    assert all(height > 150 for height in found["charts"])
    assert found["outside"] == []
    assert (found["wide"], found["unlabelled"]) == (False, 0)
    assert found["contrast"] >= 4.5
    assert found["paper"] > 0.8
    narrow_and_dark = seen(page, tmp_path, dark=True, width=500)
    assert narrow_and_dark["paper"] < 0.05
    assert narrow_and_dark["contrast"] >= 4.5
    assert not narrow_and_dark["wide"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH to look at the report with")
def test_no_script_runs_in_a_report(vault: Vault, tmp_path: Path) -> None:
    _, page = reported(vault, "client", tmp_path)
    marked = tmp_path / "marked.html"
    marked.write_text(page.replace("</body>", "<script>document.title = 'owned'</script></body>"), encoding="utf-8")
    assert "<title>This model was leaked by hospital-3.</title>" in browse(marked, tmp_path / "profile")
