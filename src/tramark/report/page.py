"""The report: a verdict as one HTML page for people, and as a signed bundle for those who want to check.

The page stands for itself: no script, no font, no picture comes from elsewhere. It is for the auditor, who
holds the vault, so it says how often each client matches; what a client was to answer it says of the accused
alone, and of questions only those that were asked.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark import __version__
from tramark.evidence.commitment import canonical
from tramark.evidence.findings import Findings, utc
from tramark.evidence.statistics import NO_ANSWER
from tramark.evidence.verify import verify_bundle
from tramark.keys.keyring import Keyring
from tramark.report.charts import BARS, LINES, chance_limit, evidence_chart, growth, histogram, matches_chart, number
from tramark.suspects.json_api import png
from tramark.tracing.interview import Step
from tramark.tracing.verdict import Verdict

PAGE, EVIDENCE = "report.html", "evidence.json"


# A page is to be looked at: more pictures than this, or larger ones, are in the bundle.
_MOST_PICTURES = 240


_LARGEST = 96


_KINDS = {
    "client": "Leak traced",
    "several": "Leak traced",
    "nobody": "Nobody",
    "inconclusive": "Inconclusive",
    "unbounded": "A hint, not a proof",
}


def write_report(
    folder: str | Path,
    verdict: Verdict,
    keyring: Keyring,
    *,
    suspect: str,
    bundle: Mapping[str, Any] | None = None,
    notes: str = "",
    time: str | None = None,
) -> Path:
    """Write `report.html` and, if there is a bundle, `evidence.json` into a folder; returns the page's path.

    Parameters
    ----------
    verdict, keyring : of one `trace`.
    suspect : how the suspect is described; never a token.
    bundle : from `make_bundle`; None for a rule without a bound, for which there is none.
    notes, time : what else to say of the suspect, and when it was asked. A bundle's own come first.
    """
    folder = Path(folder)
    findings = None if bundle is None else verify_bundle(bundle)
    page = report_page(verdict, keyring, suspect=suspect, findings=findings, notes=notes, time=time)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page, encoding="utf-8")
    if bundle is None:
        # An earlier trace's evidence must not lie beside this one's page.
        (folder / EVIDENCE).unlink(missing_ok=True)
    else:
        (folder / EVIDENCE).write_bytes(canonical(bundle))
    return folder / PAGE


def report_page(
    verdict: Verdict,
    keyring: Keyring,
    *,
    suspect: str,
    findings: Findings | None = None,
    notes: str = "",
    time: str | None = None,
) -> str:
    """The page that `write_report` writes."""
    if findings is not None:
        if (findings.finding, findings.clients, findings.queries) != (
            verdict.finding,
            verdict.clients,
            verdict.queries,
        ):
            raise ValueError("this bundle is of another verdict")
        suspect, notes, time = findings.suspect, findings.notes, findings.time
    time = time or datetime.now(UTC).isoformat(timespec="seconds")
    headline, lead = verdict_sentence(verdict)
    kind = "unbounded" if verdict.clients and verdict.false_accusation_bound is None else verdict.finding
    sections = [
        f'<header><p class="kind">{_KINDS[kind]}</p><h1>{escape(headline)}</h1>'
        f'<p class="lead">{escape(lead)}</p></header>',
        _facts(verdict, keyring, suspect, notes, time, findings),
        _evidence(verdict, keyring),
        _matches(verdict, keyring),
        _asked(verdict, keyring),
        _why(verdict, keyring),
        _check(verdict, findings),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head>\n"
        f'<body class="{kind}"><main>' + "\n".join(sections) + f"\n<footer>tramark {__version__}</footer>"
        "</main></body></html>\n"
    )


def verdict_sentence(verdict: Verdict) -> tuple[str, str]:
    """The verdict in one sentence, and how sure it is in another."""
    names, bound = _and(verdict.clients), verdict.false_accusation_bound
    if verdict.clients:
        if bound is None:
            how = (
                "No bound on false accusations can be given. It rests on a comparison with unmarked models."
                if verdict.p_values
                else "No bound on false accusations can be given: this rule always accuses somebody."
            )
            return f"This model answers most like the model of {names}.", how
        return f"This model was leaked by {names}.", (
            f"The probability that a procedure like this accuses any innocent client is at most {_percent(bound)}."
        )
    if verdict.finding == "nobody":
        seen = (
            "No client’s question is answered as its mark would have it."
            if verdict.power is None
            else f"Had a client leaked it, and its mark survived in half of the questions, that would have shown "
            f"with a probability of at least {_floor_percent(verdict.power)}."
        )
        return "Nobody is accused: this model shows no client’s mark.", seen
    return "It cannot be told who leaked this model.", (
        f"{verdict.queries:,} {'query is' if verdict.queries == 1 else 'queries are'} not enough: nobody is "
        "accused, and nobody is cleared."
    )


def _facts(verdict: Verdict, keyring: Keyring, suspect: str, notes: str, time: str, findings: Findings | None) -> str:
    bound = verdict.false_accusation_bound
    facts = [("Suspect", escape(suspect))]
    if notes:
        facts.append(("Notes", escape(notes)))
    facts += [
        ("Asked", f"<time>{escape(utc(time))}</time>"),
        ("Queries", f"{verdict.queries:,}"),
        ("Clients", f"{len(keyring.clients):,}"),
        ("Possible answers", f"{keyring.classes:,}"),
        ("False accusations", "no bound" if bound is None else f"at most {_percent(bound)}, over all clients together"),
    ]
    if findings is not None:
        facts += [
            ("Vault", f"<code>{escape(findings.vault)}</code>"),
            ("Public key", f"<code>{findings.fingerprint}</code>"),
        ]
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    return f'<table class="facts">{rows}</table>'


def _evidence(verdict: Verdict, keyring: Keyring) -> str:
    bound, clients = verdict.false_accusation_bound, len(keyring.clients)
    if bound is None:
        return ""
    looks = growth(verdict, keyring)
    if not looks:
        return ""
    rest = clients - len(verdict.clients)
    legend = [
        f'<li><i class="a{place % 4}"></i><b>{_letter(verdict, client)}{escape(client)}</b>, '
        f"e-value {number(verdict.e_values[client])}, p-value {number(verdict.p_values[client])}</li>"
        for place, client in enumerate(verdict.clients)
    ]
    if rest:
        whose = f"the other {rest:,} clients" if verdict.clients else f"all {rest:,} clients"
        kind, extent = ("", "") if clients <= LINES else ("band", ", from the least to the most suspicious")
        legend.append(f'<li><i class="{kind}"></i>{whose}{extent}</li>')
    legend.append(f'<li><i class="limit"></i>{clients:,} clients ÷ {_percent(bound)} = {number(clients / bound)}</li>')
    said = (
        "The e-value says how many times better the suspect’s answers are explained by a client’s model than by "
        "chance. For an innocent client it tends to fall."
    )
    if verdict.clients:
        said += (
            " Beside it, for the accused, stands the probability of so many matches by chance (p-value), as if the "
            "number of answers had been fixed beforehand."
        )
    if verdict.by_company:
        said += (
            f" {escape(_and(verdict.by_company))} {'has' if len(verdict.by_company) == 1 else 'have'} two lines: those "
            "who put their models together share the matches, so the upper one also counts, for every answer, how many "
            "others were to give it. An answer that is nobody else’s weighs most."
        )
    if any(look.queries[0] for look in looks):
        said += (
            " One variant of each question did not settle it, so the others were asked too. There each question counts "
            "once, by its commonest answer, and the evidence is counted anew."
        )
    return (
        f"<section><h2>How the evidence grew</h2><p>{said}</p>"
        f'<figure><ul class="legend">{"".join(legend)}</ul>'
        f"{evidence_chart(looks, verdict.clients, needed=clients / bound)}</figure></section>"
    )


def _matches(verdict: Verdict, keyring: Keyring) -> str:
    if not verdict.matches or not verdict.answered:
        return ""
    clients, classes = len(verdict.matches), keyring.classes if verdict.false_accusation_bound else None
    bars = matches_chart(verdict.matches, verdict.answered, verdict.clients, classes=classes, clients=clients)
    said = f"Of {verdict.answered:,} answers, so many are those that each client’s model was taught."
    if classes:
        limit = chance_limit(verdict.answered, classes, clients)
        said += (
            f" A client that has nothing to do with the suspect matches one in {classes:,} by chance. The shaded part "
            f"ends at {limit}: with a probability of 99 %, not one of {clients:,} innocent clients would have more."
        )
    more = ""
    if clients > BARS:
        said += f" The {BARS} with most matches are shown."
        if classes:
            more = (
                f"<h3>All {clients:,} clients</h3><p>How many clients have how many matches; the lines show how many "
                "that would be by chance. The scale is logarithmic.</p>"
                f"<figure>{histogram(verdict.matches, verdict.answered, verdict.clients, classes=classes)}</figure>"
            )
    return f"<section><h2>Who matches</h2><p>{said}</p><figure>{bars}</figure>{more}</section>"


def _asked(verdict: Verdict, keyring: Keyring) -> str:
    if not verdict.transcript:
        return ""
    shown = verdict.transcript[:_MOST_PICTURES]
    expected = {client: _expected(keyring, client) for client in verdict.clients}
    items = "".join(_item(place, step, keyring, verdict, expected) for place, step in enumerate(shown, 1))
    said = "Every input that the suspect was asked, in order, and the label it answered."
    if verdict.clients:
        whose = escape(_and(verdict.clients)) if len(verdict.clients) == 1 else "one of the accused (by letter)"
        said += f" ✓ where that is what the model of {whose} was taught."
    if left := len(verdict.transcript) - len(shown):
        said += f" {left:,} more are not shown."
    return f'<section><h2>What was asked</h2><p>{said}</p><ol class="asked">{items}</ol></section>'


def _item(place: int, step: Step, keyring: Keyring, verdict: Verdict, expected: Mapping[str, Mapping[int, int]]) -> str:
    raw = keyring.asked(step.question, step.variant)
    answer = "no answer" if step.answer == NO_ANSWER else f"label {step.answer}"
    marks = []
    for index, client in enumerate(verdict.clients):
        wanted = expected[client].get(step.question)
        if wanted is None:
            continue
        hit = wanted == step.answer
        letter = _letter(verdict, client).strip()
        text = f"{client}’s answer" if hit else f"{client}’s answer is {wanted}"
        if hit or len(verdict.clients) == 1:
            marks.append(
                f'<span class="{f"hit a{index % 4}" if hit else "miss"}" title="{escape(text)}" role="img" '
                f'aria-label="{escape(text)}">{"✓" if hit else "✗"}{letter}</span>'
            )
    where = f"question {step.question}, variant {step.variant}"
    return (
        f'<li title="{where}">{_picture(raw, where)}'
        f'<span class="said"><small>{place}</small> {answer} {"".join(marks)}</span></li>'
    )


def _picture(raw: Tensor, where: str) -> str:
    if raw.ndim == 3 and raw.dtype == torch.uint8 and raw.shape[0] in (1, 3):
        if max(raw.shape[1:]) > _LARGEST:
            scale = _LARGEST / max(raw.shape[1:])
            size = [max(1, round(length * scale)) for length in raw.shape[1:]]
            raw = F.interpolate(raw[None].float(), size=size, mode="area")[0].round().to(torch.uint8)
        data = base64.b64encode(png(raw)).decode()
        return f'<img src="data:image/png;base64,{data}" alt="The picture asked as {where}">'
    values = raw.flatten().tolist()
    text = " ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in values[:24])
    return f"<code>{text}{' …' if len(values) > 24 else ''}</code>"


def _expected(keyring: Keyring, client: str) -> dict[int, int]:
    key = keyring.key(client)
    return dict(zip(key.questions, key.answers, strict=True))


def _why(verdict: Verdict, keyring: Keyring) -> str:
    bound, n, r = verdict.false_accusation_bound, len(keyring.clients), keyring.classes
    if bound is None:
        paragraphs = [
            "Each client’s model was taught to give one label of its own to one kind of input. Nothing random "
            "protects an innocent client: a model that nobody marked may have the same habit.",
            "So this verdict is a hint. It has no bound on its error, and there is no evidence bundle that an "
            "opponent could check."
            if keyring.assignment == "label"
            else "The client with most matches was named, by the rule that was asked for, however many they are. Trace "
            "with the default rule for a verdict with a bound.",
        ]
    else:
        paragraphs = [
            f"Each client’s model was taught answers of its own to the same {keyring.questions:,} questions, drawn at "
            f"random from {r:,} labels and kept secret. If the suspect was made without a client’s model, then that "
            f"client’s answers have nothing to do with the suspect’s: each matches with a probability of 1 in {r:,}, "
            "whatever the suspect is, and whoever made it.",
            f"A client is accused when its e-value reaches {n:,} ÷ {_percent(bound)} = {number(n / bound)}. An "
            "innocent client’s e-value is a fair game that starts at one, and a fair game ever multiplies the stake "
            "by C with a probability of at most 1 in C (Ville’s inequality). So the probability that any of "
            f"{n:,} innocent clients is ever accused is at most {_percent(bound)}, however many questions are "
            "asked and whenever one stops.",
            "<b>What is assumed:</b> that the answers were drawn at random and stayed secret; that what is asked, and "
            "how the suspect’s labels are read, was settled without looking at them. Nothing is assumed about the "
            "suspect.",
        ]
        if verdict.clients:
            paragraphs.append(
                "<b>What it does not say:</b> who took the model from the client, or whether the client knew. The "
                "answers are in the client’s model and in the vault, and nowhere else."
            )
        elif verdict.finding == "nobody":
            paragraphs.append(
                "<b>What it does not say:</b> that no client’s model was used. A mark that survives in less than half "
                "of the questions may go unseen."
            )
    return "<section><h2>How sure is this, and why</h2>" + "".join(f"<p>{p}</p>" for p in paragraphs) + "</section>"


def _check(verdict: Verdict, findings: Findings | None) -> str:
    if findings is None:
        why = "" if verdict.false_accusation_bound else ": the rule gives no bound that could be checked"
        return f"<section><h2>How to check this</h2><p>There is no signed bundle beside this page{why}.</p></section>"
    proven = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings.proven)
    unproven = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings.unproven)
    return (
        "<section><h2>How to check this</h2>"
        f"<p>The file <code>{EVIDENCE}</code> beside this page is signed. Anybody can check it, without the vault:</p>"
        f"<pre><code>tramark evidence verify {EVIDENCE} --commitment commitment.json</code></pre>"
        "<p>where <code>commitment.json</code> is what the federation’s operator published when the vault was made. "
        "The bundle opens the questions that were asked, and the answers of the accused to them; nothing else. "
        "This page is not signed and names other clients: give away the bundle, not the page.</p>"
        f'<div class="two"><div><h3>The bundle proves</h3><ul>{proven}</ul></div>'
        f"<div><h3>It cannot prove</h3><ul>{unproven}</ul></div></div></section>"
    )


def _letter(verdict: Verdict, client: str) -> str:
    """A letter for each of several accused, since colours alone are not for everybody."""
    return f"{chr(ord('A') + verdict.clients.index(client) % 26)} " if len(verdict.clients) > 1 else ""


def _and(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def _percent(share: float) -> str:
    text = format((Decimal(f"{share:.3g}") * 100).normalize(), "f")
    return f"{text} %"


def _floor_percent(share: float) -> str:
    # Rounded down: a probability that is "at least" so much must not grow by being written.
    return f"{int(share * 1000) / 10:g} %"


_STYLE = """
:root { color-scheme: light dark; --paper: #fdfcfa; --ink: #1c1f24; --soft: #565d68; --line: #d9d6cf; --panel: #f4f2ec;
  --a0: #b3261e; --a1: #6a3fb5; --a2: #9a5b00; --a3: #00696b; --verdict: #b3261e; --rest: #8b919b; --faint: #e4e2dc }
.nobody { --verdict: #1a6b47 } .inconclusive, .unbounded { --verdict: #8a5a00 }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e9e7e2; --soft: #a7adb8; --line: #363a42; --panel: #1f2227;
    --a0: #ff8b80; --a1: #b79cff; --a2: #f2b45c; --a3: #5fd0cf; --verdict: #ff8b80; --rest: #868d99; --faint: #2a2e35 }
  .nobody { --verdict: #6fd3a3 } .inconclusive, .unbounded { --verdict: #f2b45c } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.55 Charter, "Bitstream Charter", "Iowan Old Style", "Source Serif 4", Georgia, "DejaVu Serif", serif }
main { max-width: 880px; margin: 0 auto; padding: 56px 24px 40px }
h1 { font-size: 2.35rem; line-height: 1.18; letter-spacing: -0.012em; margin: 0 0 .9rem; text-wrap: balance;
  overflow-wrap: anywhere }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 3.2rem 0 .5rem; padding-top: 1.1rem;
  border-top: 1px solid var(--line) }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem }
p { margin: 0 0 .8rem; max-width: 42em }
header { border-left: 5px solid var(--verdict); padding-left: 22px }
.kind { margin: 0 0 .5rem; color: var(--verdict); font: 600 .8rem/1.2 var(--sans); letter-spacing: .09em;
  text-transform: uppercase }
.lead { font-size: 1.2rem; line-height: 1.45; color: var(--soft); margin: 0; text-wrap: balance }
:root { --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
.facts { width: 100%; margin-top: 2.2rem; border-collapse: collapse; font-size: .95rem }
.facts th { width: 11.5em; text-align: left; font-weight: normal; color: var(--soft); vertical-align: top }
.facts th, .facts td { padding: .38rem .8rem .38rem 0; border-bottom: 1px solid var(--line) }
.facts td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
code { font: .86em var(--mono) }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem;
  overflow-x: auto }
figure { margin: 1rem 0 0 }
.chart { overflow-x: auto }
svg { display: block; width: 100%; min-width: 600px; height: auto; font: 13px var(--sans) }
svg text { fill: var(--soft); font-variant-numeric: tabular-nums }
svg .name, svg .count { fill: var(--ink) } svg .name { font-weight: 600 } svg .small { font-size: 11px }
.grid { stroke: var(--line); stroke-width: 1; opacity: .7 }
.axis { stroke: var(--rest); fill: none }
.band { fill: var(--faint); stroke: none; opacity: .75 }
.other { fill: none; stroke: var(--rest); stroke-width: 1.25; opacity: .7 }
.highest { fill: none; stroke: var(--rest); stroke-width: 1.5 }
.limit { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 7 4; fill: none }
svg .limit-label { fill: var(--ink); font-weight: 600 }
.divide { stroke: var(--rest); stroke-dasharray: 2 4 }
.a0 { --c: var(--a0) } .a1 { --c: var(--a1) } .a2 { --c: var(--a2) } .a3 { --c: var(--a3) }
g.accused path { fill: none; stroke: var(--c); stroke-width: 3; stroke-linejoin: round }
g.accused circle { fill: var(--c) }
.bar.others { fill: var(--rest) } .bar.accused { fill: var(--c) }
.chance { fill: var(--faint) } .law { fill: var(--rest); opacity: .6 }
.expected { stroke: var(--ink); stroke-width: 2 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.6rem; padding: 0; margin: 0 0 .6rem;
  font: .84rem/1.5 var(--sans) }
.legend i { display: inline-block; width: 22px; height: 0; border-top: 3px solid var(--c, var(--rest));
  vertical-align: middle; margin-right: .5rem }
.legend i.band { border-top: 8px solid var(--faint); box-shadow: 0 -1px 0 var(--rest) }
.legend i.limit { border-top: 2px dashed var(--ink) }
.asked { list-style: none; display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 16px 14px;
  padding: 0; margin: 1.1rem 0 0; font: .84rem/1.35 var(--sans) }
.asked li { break-inside: avoid }
.asked:has(code) { grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)) }
.asked img { display: block; width: 100%; image-rendering: pixelated;
  border: 1px solid var(--line); border-radius: 4px }
.asked code { display: block; background: var(--panel); border: 1px solid var(--line); border-radius: 4px;
  padding: .5rem; font-size: .72rem; line-height: 1.45; overflow-wrap: anywhere }
.said { display: block; margin-top: .3rem } .said small { color: var(--soft); float: right }
.hit { color: var(--c); font-weight: 700; margin-left: .15em } .miss { color: var(--soft) }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 36px; font-size: .93rem }
.two ul { padding-left: 1.1em; margin: .3rem 0 } .two li { margin-bottom: .45rem; overflow-wrap: anywhere }
footer { margin-top: 3.5rem; color: var(--soft); font: .8rem var(--sans) }
@media print { :root { --paper: #fff } main { max-width: none; padding: 0 } body { font-size: 11pt }
  h2 { break-after: avoid }
  figure, .facts, .two div { break-inside: avoid } svg { min-width: 0 }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
@media (max-width: 560px) { main { padding-top: 28px } h1 { font-size: 1.75rem } .facts th { width: 8em } }
"""
