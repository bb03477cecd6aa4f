"""The report says what the verdict says, shows it legibly in a browser, and gives nothing away."""

import base64
import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from reports import CASES, SUSPECT, reported
from statements import closed
from torch import nn
from traces import Oracle, hidden, leaked_by, ring

from tramark.errors import SettingError
from tramark.evidence.premise import Premise
from tramark.evidence.verify import verify_statement
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns, WafflePatterns
from tramark.keys.sources import Tokens
from tramark.report.page import report_page
from tramark.report.words import verdict_sentence
from tramark.report.written import check_folder, write_report
from tramark.suspects.png import png
from tramark.tracing.handover import findings_of, make_statement
from tramark.tracing.interview import Step
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict
from tramark.vault.store import Vault

Verdicts = dict[str, Verdict]

HEADLINES = {
    "client": "This model carries the mark of hospital-3.",
    "second look": "This model carries the mark of hospital-2.",
    "nobody": "Nobody’s mark was found in this model.",
    "inconclusive": "It cannot be told whether this model carries anybody’s mark.",
    "no answers": "It cannot be told whether this model carries anybody’s mark.",
    "paper": "This model answers most like the model of hospital-3.",
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_says_the_verdict_first_and_gives_nothing_away(
    vault: Vault, verdicts: Verdicts, tmp_path: Path, case: str
) -> None:
    verdict = verdicts[case]
    page = reported(vault, verdict, tmp_path)
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
        assert verify_statement((tmp_path / "statement.json").read_bytes()).clients == verdict.clients
        assert "tramark evidence verify statement.json" in page
    else:
        assert not (tmp_path / "statement.json").exists()
        assert "no signed statement" in page


@pytest.mark.parametrize("case", CASES)
def test_the_page_for_the_outside_has_no_question_and_no_word_of_the_innocent(
    vault: Vault, verdicts: Verdicts, tmp_path: Path, case: str
) -> None:
    verdict = verdicts[case]
    reported(vault, verdict, tmp_path)
    page = (tmp_path / "public.html").read_text()
    assert verdict_sentence(verdict)[0] in page
    assert not re.search("<li title=|data:image/png;|<svg|Who matches", page)
    assert set(re.findall(r"hospital-\d+", page)) == set(verdict.clients)


@pytest.mark.parametrize(
    ("premise", "headline", "lead"),
    [
        (Premise(), "Nobody’s mark", "survived in half of the questions (as is assumed) would have been found"),
        (
            Premise(measured=True),
            "Nobody’s mark",
            "survived in 50 % of the questions (as was measured on models that clients returned) would",
        ),
        (
            Premise(surviving=0.45, measured=True),
            "Nobody’s mark",
            "survived in 45 % of the questions (as was measured on models that clients returned) would",
        ),
        (
            Premise(surviving=0.05, measured=True),
            "It cannot be told",
            "Marks survive in 5 % of the questions (as was measured on models that clients returned), and 36 queries",
        ),
        (Premise(issued=False), "It cannot be told", "No marked model has been issued from this vault yet: "),
    ],
)
def test_an_unmarked_suspect_shows_no_more_than_the_premise_allows(
    vault: Vault, tmp_path: Path, premise: Premise, headline: str, lead: str
) -> None:
    verdict = trace(Oracle(vault.keyring, lambda q, v: 0), vault.keyring, premise=premise, false_accusation=0.3)
    page = reported(vault, verdict, tmp_path)
    assert verdict_sentence(verdict)[0].startswith(headline)
    assert lead in verdict_sentence(verdict)[1]
    assert lead in page
    if verdict.finding == "nobody":
        assert f"holds for a mark that survives\n{premise.words}." in page


def test_several_are_named_with_their_letters(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    verdict = verdicts["several"]
    page = reported(vault, verdict, tmp_path)
    assert sorted(verdict.clients) == ["hospital-1", "hospital-8"]
    assert verdict_sentence(verdict)[0] == f"This model carries the marks of {' and '.join(verdict.clients)}."
    assert "at most 1 %." in page
    for letter, client in zip("AB", verdict.clients, strict=True):
        assert f"<b>{letter} {client}</b>" in page
        assert page.count(f"✓{letter}<") == verdict_matches(verdict, vault.keyring.key(client).answers)


def verdict_matches(verdict: Verdict, answers: tuple[int, ...]) -> int:
    """Queries (not questions) answered as a client's model was taught; questions here are numbered as in use."""
    return sum(answers[step.question] == step.answer for step in verdict.transcript)


def test_ticks_are_where_the_answer_is_the_accuseds(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    verdict = verdicts["client"]
    page = reported(vault, verdict, tmp_path)
    assert page.count("✓<") == verdict.matches["hospital-3"] < verdict.queries
    assert page.count("✗<") == verdict.queries - verdict.matches["hospital-3"]
    assert "without whose model the suspect was made is at most 0.0001 %." in page
    for step in verdict.transcript:
        raw = vault.keyring.raw([step.question], "held-out")[0, step.variant]
        assert base64.b64encode(png(raw)).decode() in page


def test_many_clients_are_a_band_and_a_histogram() -> None:
    keyring = ring(clients=[f"client {i}" for i in range(3000)])
    verdict = trace(leaked_by(keyring, "client 77"), keyring)
    page = report_page(verdict, keyring, suspect="model.onnx")
    assert "All 3,000 clients" in page
    assert "the other 2,999 clients" in page
    assert len(set(re.findall(r"client \d+", page))) == 20
    assert len(page) < 120_000
    counts = [int(count.replace(",", "")) for count in re.findall(r"matches: ([\d,]+) clients,", page)]
    # Once for wide windows, once for phones.
    assert sum(counts) == 2 * 3000


def test_nobody_of_many_clients_is_accused() -> None:
    keyring = ring(clients=[f"client {i}" for i in range(60)])
    page = report_page(trace(Oracle(keyring, lambda q, v: 0), keyring), keyring, suspect="model.onnx")
    assert "all 60 clients, from the least to the most suspicious" in page
    assert '<path class="band"' in page


def test_a_federation_of_one() -> None:
    keyring = ring(clients=["alone"])
    page = report_page(trace(leaked_by(keyring, "alone"), keyring), keyring, suspect="model.onnx")
    assert "This model carries the mark of alone." in page
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


def test_evidence_of_another_verdict_is_refused(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    case = closed(vault, verdicts["client"])
    found = findings_of(vault, case, make_statement(vault, case))
    with pytest.raises(ValueError, match="another verdict"):
        write_report(tmp_path, verdicts["nobody"], vault.keyring, suspect=SUSPECT, findings=found)
    assert not list(tmp_path.iterdir())


def test_an_earlier_report_is_never_overwritten(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    reported(vault, verdicts["client"], tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SettingError, match=r"report.html exists already.*give another folder"):
        reported(vault, verdicts["paper"], tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "statement.json").symlink_to(tmp_path / "nothing")
    with pytest.raises(SettingError, match=r"statement.json exists already"):
        check_folder(tmp_path)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="file"):
        check_folder(tmp_path / "file" / "x")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_can_read_a_report(vault: Vault, verdicts: Verdicts, tmp_path: Path) -> None:
    reported(vault, verdicts["client"], tmp_path)
    for name in ("report.html", "public.html", "statement.json"):
        assert (tmp_path / name).lstat().st_mode == stat.S_IFREG | 0o600


def test_the_strip_has_the_answers_of_the_suspect_and_of_the_accused_alone(
    vault: Vault, verdicts: Verdicts, tmp_path: Path
) -> None:
    verdict = verdicts["client"]
    [strip] = re.findall('<div class="strip".*?</div>', reported(vault, verdict, tmp_path), re.DOTALL)
    own = vault.keyring.key("hospital-3").answers
    assert re.findall(r"<b>(\d+)</b>", strip) == [str(step.answer) for step in verdict.transcript]
    assert re.findall(r"<i.*?>(\d+)</i>", strip) == [str(own[step.question]) for step in verdict.transcript]
    assert strip.count('class="same a0"') == verdict.matches["hospital-3"]
    assert f"{verdict.matches['hospital-3']} of them are hospital-3’s" in strip


def test_the_page_says_how_the_suspect_was_fed_and_names_its_labels(vault: Vault, verdicts: Verdicts) -> None:
    verdict = verdicts["client"]
    names = {f"digit {label}": label for label in range(10)}
    conventions = {"adapter": "LoadedSuspect", "conventions": {"size": [32, 32], "labels": names, "prepare": True}}
    case = closed(vault, verdict, conventions=conventions)
    page = report_page(
        replace(verdict, case=case), vault.keyring, suspect="model.onnx", auditor="Ada <L>", notes="seen twice"
    )
    for words in ("32 × 32", "as the federation’s own models are", "digit 3 → 3", "Ada &lt;L&gt;", "seen twice"):
        assert words in page
    assert f"</small> digit {verdict.transcript[0].answer} " in page
    assert "Vault audit" in page
    outside = report_page(replace(verdict, case=case), vault.keyring, suspect="model.onnx", outside=True)
    assert "How it was fed" not in outside
    assert "Burned" in outside


def test_large_pictures_are_made_small() -> None:
    keyring = ring(Patterns((3, 224, 160)), questions=8, pool=8, classes=10)
    verdict = trace(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10)), keyring, budget=2)
    page = report_page(verdict, keyring, suspect="model.onnx")
    pictures = [base64.b64decode(data) for data in re.findall(r"data:image/png;base64,([^\"]+)", page)]
    sizes = [(int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) for data in pictures]
    assert sizes == [(69, 96)] * 2
