"""Traces on the desk: a suspect that is looked at first, and then asked in a thread of its own.

The thread notes what happens as events; pages read them as they come. A suspect from a file runs, as everywhere, in a
process of its own that has neither vault nor key.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tramark.errors import SuspectError, TramarkError
from tramark.evidence.case import RULES, Case, Suspected
from tramark.keys.keyring import Keyring
from tramark.report.feeding import fed
from tramark.report.page import shown_input
from tramark.report.words import verdict_sentence
from tramark.suspects.base import Adapter
from tramark.suspects.tried import Probed
from tramark.tracing.casework import steps_of
from tramark.tracing.interview import Step
from tramark.tracing.probing import fed_as, probe_suspect
from tramark.tracing.suspected import conventions_of
from tramark.tracing.trace import trace
from tramark.vault.store import Vault
from tramark.web.forms import Order
from tramark.web.live import Event, Live

PICTURES = 8
"""Questions that are shown as the suspect will see them."""


class Stopped(SuspectError):  # noqa: N818
    """The auditor ended the trace. Its case can go on later."""


class Trace:
    """One suspect on the desk.

    Parameters
    ----------
    suspected : what the case records of the suspect.
    adapter : asks it. How it is fed is settled here, before the first question.
    order : what the auditor asked for.
    """

    def __init__(self, suspected: Suspected, adapter: Adapter, order: Order) -> None:
        self.suspected, self.adapter, self.order = suspected, adapter, order
        self.probed: Probed | None = None
        self.trouble = ""
        self.events: list[Event] = []
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._begin = threading.Lock()

    @property
    def state(self) -> str:
        """ "ready", "running", "done" or "failed"."""
        if self._thread is None:
            return "ready"
        last = self.events[-1]["event"] if self.events else ""
        return last if last in ("done", "failed") else "running"

    @property
    def fed(self) -> Adapter:
        """The suspect, fed and read as the probe proposes."""
        return self.adapter if self.probed is None else fed_as(self.adapter, self.probed.conventions)  # type: ignore[return-value]

    def probe(self, vault: Vault) -> None:
        """Find out by public inputs how the suspect is fed and read, or why that cannot be. No question is asked."""
        try:
            self.probed = probe_suspect(self.adapter, vault, budget=self.order.options.get("budget"))
        except TramarkError as error:
            self.trouble = str(error)

    def preview(self, keyring: Keyring) -> dict[str, Any]:
        """What the suspect will be fed: pictures, numbers and conventions. Nothing is run and nothing is sent."""
        raw = keyring.raw(keyring.chosen or (0,), "held-out")[:PICTURES, 0]
        shown: dict[str, Any] = {
            "fed": fed(conventions_of(self.fed)),
            "confinement": list(getattr(self.adapter, "confinement", ())),
            "questions": [shown_input(one) for one in raw],
            "seen": [],
            "words": "",
            "problem": "",
        }
        try:
            shown["words"] = self.fed.preview(raw).splitlines()[-1]
            shown["seen"] = [shown_input(one) for one in self._as_seen(raw)]
        except TramarkError as error:
            shown["problem"] = str(error)
        return shown

    def begin(self, vault: Vault) -> None:
        """Start asking. A trace begins once."""
        with self._begin:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, args=(vault,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the trace after the answer that is awaited. Its case can go on later."""
        self._stop.set()

    def wait(self, seconds: float) -> None:
        """Wait until the trace has ended, or for so many seconds."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _as_seen(self, raw: torch.Tensor) -> torch.Tensor:
        """Inputs as the suspect will see them: pictures from their darkest value to their brightest."""
        conventions = replace(self.fed.conventions, layout="NCHW", flat=False, dtype=None)  # type: ignore[attr-defined]
        inputs: torch.Tensor = conventions.inputs(raw)
        if raw.dtype != torch.uint8 or inputs.ndim != 4:
            return inputs
        low, high = inputs.float().aminmax()
        return ((inputs - low) * (255 / (high - low).clamp(min=1e-9))).round().to(torch.uint8)

    def _run(self, vault: Vault) -> None:
        follow = _Follower(vault, self.order.case, self.events.append)

        def progress(step: Step) -> None:
            follow(step)
            if self._stop.is_set():
                raise Stopped("stopped: what was asked is kept, and the case can go on")

        try:
            verdict = trace(
                self.adapter,
                vault,
                progress=progress,
                suspected=None if self.suspected.remote else self.suspected,
                case=self.order.case,
                probe=self.probed or True,
                **self.order.options,
            )
        except TramarkError as error:
            case = error.case if isinstance(error, SuspectError) else None
            self.events.append({"event": "failed", "words": str(error), "case": case})
        except Exception as error:
            # What went wrong may hold a secret: its kind is all that is shown.
            words = (
                f"this is a bug in tramark: {type(error).__name__}. Trace at the command line with --debug to see it"
            )
            self.events.append({"event": "failed", "words": words, "case": None})
        else:
            assert verdict.case is not None
            headline, lead = verdict_sentence(verdict)
            kind = "unbounded" if verdict.clients and verdict.false_accusation_bound is None else verdict.finding
            done = {"event": "done", "kind": kind, "headline": headline, "lead": lead, "case": verdict.case.number}
            self.events.append(done | {"accused": list(verdict.clients)})


class _Follower:
    """Makes events of a trace's steps, once its case is in the vault."""

    def __init__(self, vault: Vault, number: int | None, tell: Callable[[Event], None]) -> None:
        self._vault, self._number, self._tell = vault, number, tell
        self._live: Live | None = None
        self._count = 0

    def __call__(self, step: Step) -> None:
        self._count += 1
        if self._count == 1:
            self._open(step)
        if self._live is not None:
            self._tell(self._live.step(step))
        else:
            self._tell({"event": "step", "query": self._count, "answer": step.answer, "values": []})

    def _open(self, first: Step) -> None:
        case = self._case()
        if case.rule not in RULES:
            return
        self._live = Live(case, self._vault.keyring)
        self._tell(self._live.begin())
        # A case that goes on has answers already; the vault may have the first new one, too.
        for step in steps_of(case) if self._number is not None else ():
            if step[:2] != first[:2]:
                self._tell(self._live.step(step))

    def _case(self) -> Case:
        """The case that is being traced: the given one, or the newest, since one is traced at a time."""
        cases = self._vault.cases
        return cases.get(self._number) if self._number is not None else cases.all()[-1]
