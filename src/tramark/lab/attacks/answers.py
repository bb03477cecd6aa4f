"""What a thief does to answers before they are given.

He keeps the model and puts something between it and whoever asks. `Randomise` gives a share of the inputs a random
label, `Round` rounds the probabilities p = softmax(scores) to a few decimals, so that near ties go to the lower label,
`LabelOnly` gives no scores, and `HideClasses` never gives some labels: the next best is given instead.

Whatever is random here depends on the seed and on the input alone: asked again, the same input gets the same answer. A
thief whose answers changed from one time to the next would give himself away, and could be asked until it averages out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.keys import streams
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.suspects.base import Answers, Suspect
from tramark.suspects.module import ModuleSuspect


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A suspect whose answers are changed before they are given."""

    suspect: Suspect
    rewrite: Callable[[Tensor, Answers], Answers]

    def ask(self, raw: Tensor) -> Answers:
        return self.rewrite(raw, self.suspect.ask(raw))


def served(model: nn.Module, loot: Loot) -> ModuleSuspect:
    """A copy of the model that is asked raw inputs."""
    return ModuleSuspect(copied(model), loot.prepare)


def drawn(raw: Tensor, *context: streams.Context, count: int = 1) -> Tensor:
    """Numbers, uniform in [0, 1), that depend on an input's bytes and the context alone: inputs × count."""
    rows = [streams.fractions(one.numpy().tobytes(), *context, shape=(count,)) for one in raw.cpu().contiguous()]
    return torch.stack(rows) if rows else torch.empty(0, count)


@dataclass(frozen=True)
class Randomise:
    """A share of the inputs gets a label that is uniform on all labels."""

    share: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise SettingError(f"the share of random answers must lie in [0, 1], not {self.share}")

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        return Rewritten(served(model, loot), lambda raw, answers: self._rewrite(raw, answers, loot.classes))

    def _rewrite(self, raw: Tensor, answers: Answers, classes: int) -> Answers:
        chance, other = drawn(raw, "randomise", self.seed, count=2).T
        return relabelled(answers, torch.where(chance < self.share, (other * classes).long(), answers.labels))


def relabelled(answers: Answers, labels: Tensor) -> Answers:
    """The same answers with other labels. The scores go along: the best one and the new label's change places."""
    if answers.scores is None:
        return Answers(labels)
    best, new = answers.labels[:, None], labels[:, None]
    scores = answers.scores.clone()
    scores.scatter_(1, best, answers.scores.gather(1, new))
    scores.scatter_(1, new, answers.scores.gather(1, best))
    return Answers(labels, scores)


@dataclass(frozen=True)
class Round:
    """Probabilities rounded to so many decimals, and the label that is the largest of them."""

    decimals: int = 1

    def __post_init__(self) -> None:
        if self.decimals < 0:
            raise SettingError(f"{self.decimals} decimals: there cannot be fewer than none")

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        return Rewritten(served(model, loot), lambda _, answers: self._rewrite(answers))

    def _rewrite(self, answers: Answers) -> Answers:
        rounded = torch.round(scores_of(answers, "rounded").double().softmax(1), decimals=self.decimals)
        # Of several that are largest, arg-max may give any: the lowest is asked for, on every machine.
        largest = (rounded == rounded.max(1, keepdim=True).values).int()
        return Answers(largest.argmax(1), rounded)


@dataclass(frozen=True)
class LabelOnly:
    """Labels, and no scores."""

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        return Rewritten(served(model, loot), lambda _, answers: Answers(answers.labels))


@dataclass(frozen=True)
class HideClasses:
    """So many labels are never given. Those that the thief's task does not have go first, the others at random."""

    count: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingError(f"{self.count} hidden labels: hide at least one")

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        suspect = served(model, loot)
        outputs = scores_of(suspect.ask(loot.inputs[:1]), "hidden").shape[1]
        if self.count >= outputs:
            raise SettingError(f"{self.count} of {outputs} labels cannot be hidden: at least one must be left to give")
        extra = torch.arange(loot.classes, outputs)
        order = torch.cat([extra, torch.randperm(min(loot.classes, outputs), generator=generator(self.seed))])
        return Rewritten(suspect, lambda _, answers: _without(order[: self.count], answers))


def _without(hidden: Tensor, answers: Answers) -> Answers:
    scores = scores_of(answers, "hidden").clone()
    scores[:, hidden] = -torch.inf
    return Answers(scores.argmax(1), scores)


def scores_of(answers: Answers, wanted: str) -> Tensor:
    """The scores, which some attacks cannot do without."""
    if answers.scores is None:
        raise SettingError(f"this model gives labels alone: there are no scores to be {wanted}")
    return answers.scores
