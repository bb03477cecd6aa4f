"""TraMark as a method among others: the server as it stands, and the tracing that goes with it."""

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from tramark.fleet.region import Places
from tramark.keys.keyring import Keyring
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.watermarked import answers
from tramark.lab.simulation.metrics import answers_of_all, judge_by_tests, traceability
from tramark.marks.presets import preset_named
from tramark.marks.replay import Replay
from tramark.server import TraMark
from tramark.suspects.base import Suspect
from tramark.tracing.trace import trace


class Traced(TraMark):
    """TraMark with its verdicts. Label answers are judged by the paper's arg-max, which always accuses somebody.

    What is declared holds for code answers, the default. Options of its own: those of the preset (`ClosedForm` or
    `GradientSteps`), `answers`, `questions`, and `trigger_count`, the images of each label to train on.
    """

    declared: ClassVar[Declared] = Declared("black-box", resists_collusion=True)
    tests: tuple[Tensor, ...] = ()
    """Each client's test triggers, raw, if issued models are verified with those."""
    _known: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def make(cls, model: nn.Module, scene: Scene) -> Self:
        options = dict(scene.options)
        assignment, count = options.pop("answers", "code"), options.pop("trigger_count", None)
        keyring = Keyring.generate(
            clients=scene.clients,
            classes=scene.classes,
            source=scene.source,
            secret=scene.secret,
            assignment=assignment,
            train_variants=count if assignment == "label" else None,
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
        method = cls(model, own, warmup_rounds=scene.warmup, injection=injection, vault=vault)
        method.tests = scene.tests
        return method

    def measure(self, samples: int | None = None) -> dict[str, Any]:
        """VR, confidence, leakage and so on of all clients' models at once."""
        if not self.marked:
            return {}
        if not self.tests:
            return traceability(self, self.keyring).to_dict()
        few = None if samples is None else max(1, samples // len(self.tests))
        inputs = [self.keyring.source.prepare(own[:few]) for own in self.tests]
        clients = self.fleet.clients
        return judge_by_tests(clients, inputs, lambda x: answers_of_all(self.model, self.fleet, x)).to_dict()

    def mark(self) -> None:
        if self.fleet.region is None:
            # The choice of a layer drops what is known of the others.
            updates = self.marking.replay.updates if self.marking.replay else []
            self._known = {"drift": self.drift.state_dict()} | {f"update.{i}": one for i, one in enumerate(updates)}
        elif self.injection.early and not self.marked:
            assert isinstance(self.fleet.region, Places)
            local = {"places": self.fleet.region.indices, "marks": self.fleet.marks.clone()}
            self._known = {**self._known, "local": local}
        super().mark()

    def warm_up(self) -> dict[str, Any]:
        return dict(self._known) if self.fleet.region is not None else {}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        self.fleet.load_base(state["fleet"])
        self.round = int(state["round"])
        if self.injection.early:
            if local := state.get("local"):
                self.fleet.settle(Places(local["places"]), local["marks"])
            else:
                warnings.warn(
                    "that run's warm-up does not say what clients returned: the region and the first marks are those "
                    "of the average, not of clients' own models as in the authors' code",
                    stacklevel=2,
                )
                super().mark()
        else:
            self.drift.load_state_dict(state["drift"])
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
            owned=bool(verdict.clients) or verdict.finding == "federation",
            # "Ours" does not say whose.
            conclusive=verdict.finding not in ("inconclusive", "federation"),
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of one's own answers to all held-out variants of one's questions."""
        key = self.keyring.key(client)
        raw = self.keyring.raw(key.questions, "held-out")
        said = answers(suspect, raw.flatten(0, 1), self.keyring.source).view(raw.shape[:2])
        return float((said == torch.tensor(key.answers)[:, None]).float().mean())
