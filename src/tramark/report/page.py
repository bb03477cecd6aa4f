"""The report: a verdict as HTML pages for people, and as a signed statement for those who want to check it.

A page stands alone: no script, font or picture comes from elsewhere. `report.html` is for the auditor, who holds the
vault, so it says how often each client matches. It shows answers of the accused only, and only the questions that were
asked. `public.html` is for the outside: it has no figure about anybody who is not accused, no question and no answer.
Its text is in `body.html.j2`, which the auditor's desk shows too; this module computes what the text needs: numbers,
charts and pictures. The keyring itself never reaches the template.
"""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import torch
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from tramark import __version__
from tramark.evidence.federation import tests
from tramark.evidence.findings import Findings
from tramark.evidence.published import utc
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys.keyring import Keyring
from tramark.report.charts import BARS, chance_limit, evidence_chart, histogram, matches_chart
from tramark.report.feeding import fed, label_names
from tramark.report.growth import LINES, growth
from tramark.report.words import facts, joined, number, percent, verdict_sentence
from tramark.suspects.png import png
from tramark.tracing.interview import Step
from tramark.tracing.verdict import Verdict

PAGE, PUBLIC, STATEMENT = "report.html", "public.html", "statement.json"

# The page is for looking at: further pictures, and larger ones, are in the annex.
_MOST_PICTURES = 240
_LARGEST = 96
_MOST_NUMBERS = 24


def templates(*folders: str) -> Environment:
    """The templates of the report and, before them, those of other folders of the package."""
    made = Environment(
        loader=ChoiceLoader([PackageLoader("tramark", folder) for folder in (*folders, "report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"grouped": "{:,}".format, "joined": joined, "number": number, "percent": percent}
    return made


_TEMPLATES = templates()


def report_page(
    verdict: Verdict,
    keyring: Keyring,
    *,
    suspect: str,
    findings: Findings | None = None,
    auditor: str = "",
    notes: str = "",
    time: str | None = None,
    outside: bool = False,
) -> str:
    """The auditor's page about a verdict, or the one for the outside. `written.write_report` has the parameters."""
    values = report_values(
        verdict,
        keyring,
        suspect=suspect,
        findings=findings,
        auditor=auditor,
        notes=notes,
        time=time,
        outside=outside,
    )
    return _TEMPLATES.get_template("report.html.j2").render(values)


def report_values(
    verdict: Verdict,
    keyring: Keyring,
    *,
    suspect: str,
    findings: Findings | None = None,
    auditor: str = "",
    notes: str = "",
    time: str | None = None,
    outside: bool = False,
) -> dict[str, Any]:
    """All that `body.html.j2` needs to show a verdict."""
    if findings is not None:
        if (findings.finding, findings.clients, findings.queries) != (
            verdict.finding,
            verdict.clients,
            verdict.queries,
        ):
            raise ValueError("this evidence is of another verdict")
        suspect, notes, time = findings.suspect, findings.notes or notes, findings.time
    # Who could not be cleared is nobody's business but the auditor's.
    headline, lead = verdict_sentence(replace(verdict, not_cleared=()) if outside else verdict)
    bound, clients, case = verdict.false_accusation_bound, len(keyring.clients), verdict.case
    recorded = case.conventions if case else {}
    asked = [] if outside else _asked(verdict, keyring, label_names(recorded))
    return {
        "kind": "unbounded" if verdict.clients and bound is None else verdict.finding,
        "headline": headline,
        "lead": lead,
        "facts": facts(verdict),
        "suspect": suspect,
        "auditor": auditor,
        "notes": notes,
        "time": utc(time or datetime.now(UTC).isoformat(timespec="seconds")),
        "queries": verdict.queries,
        "clients": clients,
        "classes": keyring.classes,
        "questions": keyring.questions,
        "assignment": keyring.assignment,
        "bound": bound,
        "needed": None if bound is None else tests(clients, keyring.common) / bound,
        "tests": tests(clients, keyring.common),
        "common": len(keyring.common),
        "federation": verdict.federation,
        "accused": verdict.clients,
        "by_company": verdict.by_company,
        "by_scores": verdict.by_scores,
        "premise": verdict.premise.words,
        "findings": findings,
        "outside": outside,
        "evidence": None if outside else _evidence(verdict, keyring),
        "matches": None if outside else _matches(verdict, keyring),
        "asked": asked,
        "strip": _strip_words(asked, verdict.clients),
        "not_shown": max(0, len(verdict.transcript) - _MOST_PICTURES),
        "fed": fed(recorded) if case else [],
        "case": None if case is None else case.number,
        "opened": None if case is None else utc(case.opened),
        "statement_file": STATEMENT,
        "public_file": PUBLIC,
        "version": __version__,
    }


def _evidence(verdict: Verdict, keyring: Keyring) -> dict[str, Any] | None:
    """The chart of the e-values and its legend; None for a rule without a bound, or if nothing was asked."""
    bound, clients = verdict.false_accusation_bound, len(keyring.clients)
    looks = [] if bound is None else growth(verdict, keyring)
    if bound is None or not looks:
        return None
    lines = [
        {
            "letter": _letter(verdict.clients, client),
            "client": client,
            "e_value": verdict.e_values[client],
            "p_value": verdict.p_values[client],
        }
        for client in verdict.clients
    ]
    return {
        "lines": lines,
        "rest": clients - len(verdict.clients),
        "band": clients > LINES,
        "second_look": any(step.variant for step in verdict.transcript),
        "chart": Markup(evidence_chart(looks, verdict.clients, needed=tests(clients, keyring.common) / bound)),
    }


def _matches(verdict: Verdict, keyring: Keyring) -> dict[str, Any] | None:
    """The charts of the matches; None if there are none to show."""
    if not verdict.matches or not verdict.answered:
        return None
    matches, answered, accused = verdict.matches, verdict.answered, verdict.clients
    clients, classes = len(matches), keyring.classes if verdict.false_accusation_bound else None
    many = clients > BARS
    return {
        "answered": answered,
        "clients": clients,
        "shown": BARS,
        "left_out": many,
        "limit": None if classes is None else chance_limit(answered, classes, clients),
        "bars": Markup(matches_chart(matches, answered, accused, classes=classes, clients=clients)),
        "histogram": Markup(histogram(matches, answered, accused, classes=classes)) if many and classes else None,
    }


def _asked(verdict: Verdict, keyring: Keyring, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The inputs that were asked, each with the suspect's answer and what the accused were taught."""
    keys = {client: keyring.key(client) for client in verdict.clients}
    taught = {client: dict(zip(key.questions, key.answers, strict=True)) for client, key in keys.items()}
    return [
        {
            "where": f"question {step.question}, variant {step.variant}",
            **shown_input(keyring.asked(step.question, step.variant)),
            "answer": None if step.answer == NO_ANSWER else step.answer,
            "name": names.get(step.answer, ""),
            "marks": _marks(step, taught),
        }
        for step in verdict.transcript[:_MOST_PICTURES]
    ]


def _marks(step: Step, taught: Mapping[str, Mapping[int, int]]) -> list[dict[str, Any]]:
    """For each of the accused, what it was taught to answer, and whether that is what the suspect answered."""
    accused, marks = list(taught), []
    for place, client in enumerate(accused):
        wanted = taught[client].get(step.question)
        if wanted is not None:
            hit = wanted == step.answer
            text = f"{client}’s answer" if hit else f"{client}’s answer is {wanted}"
            marks.append(
                {"hit": hit, "place": place, "letter": _letter(accused, client), "wanted": wanted, "text": text}
            )
    return marks


def _strip_words(asked: Sequence[Mapping[str, Any]], accused: Sequence[str]) -> str:
    """What the strip of answers shows, for whoever cannot see it."""
    hits = Counter(one["place"] for item in asked for one in item["marks"] if one["hit"])
    own = (f"; {hits[place]} of them are {client}’s" for place, client in enumerate(accused))
    return f"{len(asked)} answers of the suspect{''.join(own)}"


def shown_input(raw: Tensor) -> dict[str, str]:
    """An input as a PNG in base64 or, if it is no image, as its first numbers."""
    if raw.ndim == 3 and raw.dtype == torch.uint8 and raw.shape[0] in (1, 3):
        if max(raw.shape[1:]) > _LARGEST:
            scale = _LARGEST / max(raw.shape[1:])
            size = [max(1, round(length * scale)) for length in raw.shape[1:]]
            raw = F.interpolate(raw[None].float(), size=size, mode="area")[0].round().to(torch.uint8)
        return {"picture": base64.b64encode(png(raw)).decode(), "numbers": ""}
    values = raw.flatten().tolist()
    text = " ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values[:_MOST_NUMBERS])
    return {"picture": "", "numbers": text + (" …" if len(values) > _MOST_NUMBERS else "")}


def _letter(accused: Sequence[str], client: str) -> str:
    """A letter for each of several accused, for readers who cannot tell the colours apart."""
    return chr(ord("A") + accused.index(client) % 26) if len(accused) > 1 else ""
