"""TraMark as a method among others: the server as it stands, and the tracing that goes with it."""

from typing import ClassVar, Self

import torch
from torch import nn

from tramark.keys.keyring import Keyring
from tramark.lab.methods.base import Access, Finding, Scene
from tramark.marks.presets import preset_named
from tramark.server import TraMark
from tramark.suspects.base import Suspect
from tramark.suspects.module import ModuleSuspect
from tramark.tracing.trace import trace


class Traced(TraMark):
    """TraMark with its verdicts. Label answers are judged by the paper's arg-max, which always accuses somebody.

    What is declared holds for code answers, the default. Options of its own: those of the preset (`ClosedForm` or
    `GradientSteps`).
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
        preset = options.pop("preset", "default")
        if preset == "default":
            # The region's ratio is a parameter of gradient steps alone; a run's settings always have one.
            options.pop("ratio", None)
        return cls(model, keyring, warmup_rounds=scene.warmup, injection=preset_named(preset, **options))

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
