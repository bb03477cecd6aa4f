"""TraMark as a method among others: the server as it stands, and the tracing that goes with it."""

from typing import ClassVar, Self

import torch
from torch import nn

from tramark.keys.keyring import Keyring
from tramark.lab.methods.base import Access, Finding, Scene
from tramark.marks.closed_form import ClosedForm
from tramark.server import TraMark
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect
from tramark.tracing.trace import trace


class Traced(TraMark):
    """TraMark with its verdicts. Label answers are judged by the paper's arg-max, which always accuses somebody.

    What is declared holds for code answers, the default. Options of its own: the `margin`, `spread`, `near`,
    `ridge`, `pull_ridge`, `calm` and `retouch` of `tramark.inject.ClosedForm`.
    """

    access: ClassVar[Access] = "black-box"
    names_clients: ClassVar[bool] = True
    resists_collusion: ClassVar[bool] = True
    says_nobody: ClassVar[bool] = True
    many_clients: ClassVar[bool] = True

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self:
        options = dict(scene.options)
        keyring = Keyring.generate(
            clients=scene.clients,
            classes=scene.classes,
            source=scene.source,
            secret=scene.secret,
            assignment=options.pop("answers", "code"),
            questions=options.pop("questions", None),
        )
        known = ("margin", "spread", "near", "ridge", "pull_ridge", "calm", "retouch")
        own = {name: options.pop(name) for name in known if name in options}
        if own and options.get("preset", "default") != "default":
            raise TypeError(f"{' and '.join(own)}: of the preset 'default' alone, not of {options['preset']!r}")
        injection = ClosedForm(**own) if own else None
        return cls(model, keyring, warmup_rounds=scene.warmup, injection=injection, **options)

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        label = self.keyring.assignment == "label"
        verdict = trace(suspect, self.keyring, rule="paper" if label else "default")
        return Finding(
            accused=verdict.clients,
            scores={client: count / max(verdict.answered, 1) for client, count in verdict.matches.items()},
            queries=verdict.queries,
            owned=bool(verdict.clients),
            conclusive=verdict.finding != "inconclusive",
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of one's own answers to all held-out variants of one's questions."""
        if isinstance(suspect, nn.Module):
            suspect = ModuleSuspect(suspect, self.keyring.source.prepare)
        key = self.keyring.key(client)
        raw = self.keyring.raw(key.questions, "held-out")
        said = suspect.ask(raw.flatten(0, 1)).labels.view(raw.shape[:2])
        return float((said == torch.tensor(key.answers)[:, None]).float().mean())
