"""TraMark as a method among others: the server as it stands, and the tracing that goes with it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import nn

from tramark.keys.keyring import Keyring
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.watermarked import answers
from tramark.lab.simulation.metrics import traceability
from tramark.marks.presets import preset_named
from tramark.marks.replay import Replay
from tramark.server import TraMark
from tramark.suspects.base import Suspect
from tramark.tracing.trace import trace


class Traced(TraMark):
    """TraMark with its verdicts. Label answers are judged by the paper's arg-max, which always accuses somebody.

    What is declared holds for code answers, the default. Options of its own: those of the preset (`ClosedForm` or
    `GradientSteps`).
    """

    declared: ClassVar[Declared] = Declared("black-box", resists_collusion=True)

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
        injection = preset_named(preset, **options)
        # The vault comes last: options that cannot work leave none behind.
        vault = None if scene.vault is None else scene.vault(keyring)
        own = keyring if vault is None else None
        return cls(model, own, warmup_rounds=scene.warmup, injection=injection, vault=vault)

    def measure(self) -> dict[str, Any]:
        """VR, confidence, leakage and so on of all clients' models at once."""
        return traceability(self, self.keyring).to_dict() if self.marked else {}

    def mark(self) -> None:
        if not self.marked:
            # The choice of a layer drops what is known of the others.
            updates = self.marking.replay.updates if self.marking.replay else []
            self._known = {"drift": self.drift.state_dict()} | {f"update.{i}": one for i, one in enumerate(updates)}
        super().mark()

    def warm_up(self) -> dict[str, Any]:
        return self._known if self.marked else {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        self.fleet.load_base(state["fleet"])
        self.drift.load_state_dict(state["drift"])
        self.round = int(state["round"])
        updates = [state[name] for name in sorted(state) if name.startswith("update.")]
        self.marking.replay = Replay(self.fleet, updates)
        self.mark()

    def close(self) -> None:
        if self.vault is not None:
            self.vault.close()
            self.vault = None

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
        key = self.keyring.key(client)
        raw = self.keyring.raw(key.questions, "held-out")
        said = answers(suspect, raw.flatten(0, 1), self.keyring.source).view(raw.shape[:2])
        return float((said == torch.tensor(key.answers)[:, None]).float().mean())
