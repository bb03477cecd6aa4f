"""A thief who refuses odd inputs.

He fits an out-of-distribution detector to his own data and answers only what looks like it. Half of his samples fit it,
the other half set the threshold beyond which `share` of clean inputs are refused. Two detectors: the Mahalanobis
distance of the features f in front of the last linear layer to the nearest class, min_c (f − μ_c)ᵀ Σ⁻¹ (f − μ_c), with
one covariance Σ for all classes; or the largest softmax probability, which is low where the model is unsure.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.evidence.statistics import NO_ANSWER
from tramark.lab.attacks.answers import drawn, relabelled, scores_of, served
from tramark.lab.attacks.base import Loot, generator
from tramark.suspects.base import Answers, Suspect
from tramark.suspects.module import ModuleSuspect

# Added to Σ, as a share of its mean variance: directions that few samples show are not trusted beyond that.
SHRINKAGE = 0.01


@dataclass(frozen=True)
class Refuse:
    """Odd inputs get no answer, or a random one.

    Parameters
    ----------
    share : the share of the thief's own clean samples that he is willing to refuse.
    action : "refuse" for no answer, "random" for a random label (the same each time an input is asked).
    detector : "mahalanobis" or "softmax".
    """

    share: float = 0.05
    action: Literal["refuse", "random"] = "refuse"
    detector: Literal["mahalanobis", "softmax"] = "mahalanobis"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise SettingError(f"the share of clean samples refused must lie between 0 and 1, not {self.share}")
        if self.action not in ("refuse", "random"):
            raise SettingError(f"unknown action {self.action!r}: use refuse or random")
        if self.detector not in ("mahalanobis", "softmax"):
            raise SettingError(f"unknown detector {self.detector!r}: use mahalanobis or softmax")

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        if len(loot.indices) < 2 * loot.classes:
            raise SettingError(f"{len(loot.indices)} samples of {loot.classes} classes are too few to fit a detector")
        order = torch.randperm(len(loot.indices), generator=generator(self.seed))
        fit, held_out = order.tensor_split(2)
        suspect = served(model, loot)
        oddness: Oddness
        if self.detector == "softmax":
            oddness = Unsure(suspect)
        else:
            oddness = Distance.fitted(suspect, loot.inputs[fit], loot.labels[fit])
        threshold = float(torch.quantile(oddness.ask(loot.inputs[held_out])[1].double(), 1 - self.share))
        return Guarded(oddness, threshold, loot.classes if self.action == "random" else None, self.seed)


@dataclass(frozen=True, eq=False)
class Unsure:
    """Minus the largest softmax probability."""

    suspect: ModuleSuspect

    def ask(self, raw: Tensor) -> tuple[Answers, Tensor]:
        answers = self.suspect.ask(raw)
        return answers, -scores_of(answers, "compared").softmax(1).max(1).values


@dataclass(frozen=True, eq=False)
class Distance:
    """The squared Mahalanobis distance to the nearest class, in the features in front of the last linear layer."""

    suspect: ModuleSuspect
    whitener: Tensor
    """The inverse of Σ's Cholesky factor."""
    means: Tensor
    """The classes' whitened means."""

    @classmethod
    def fitted(cls, suspect: ModuleSuspect, raw: Tensor, labels: Tensor) -> "Distance":
        _, features = _features(suspect, raw)
        present, member = labels.unique(return_inverse=True)
        means = torch.stack([features[member == i].mean(0) for i in range(len(present))])
        rest = features - means[member]
        covariance = rest.T @ rest / len(rest)
        ridge = SHRINKAGE * covariance.diagonal().mean().clamp_min(1e-12)
        factor = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=covariance.dtype))
        whitener = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False)
        return cls(suspect, whitener, means @ whitener.T)

    def ask(self, raw: Tensor) -> tuple[Answers, Tensor]:
        answers, features = _features(self.suspect, raw)
        return answers, torch.cdist(features @ self.whitener.T, self.means).square().min(1).values


Oddness = Unsure | Distance


def _features(suspect: ModuleSuspect, raw: Tensor) -> tuple[Answers, Tensor]:
    """What the suspect answers, and what its last linear layer was fed."""
    linear = [module for module in suspect.module.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise SettingError(f"{type(suspect.module).__name__} has no linear layer to compare features at: use softmax")
    seen: list[Tensor] = []
    handle = linear[-1].register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(1).cpu().double()))
    try:
        answers = suspect.ask(raw)
    finally:
        handle.remove()
    return answers, torch.cat(seen)


@dataclass(frozen=True, eq=False)
class Guarded:
    """A suspect that answers what does not look odd."""

    oddness: Oddness
    threshold: float
    classes: int | None
    """Odd inputs get one of so many random labels; without it, no answer."""
    seed: int

    def ask(self, raw: Tensor) -> Answers:
        answers, how_odd = self.oddness.ask(raw)
        odd = how_odd > self.threshold
        if self.classes is not None:
            other = (drawn(raw, "refuse", self.seed)[:, 0] * self.classes).long()
            return relabelled(answers, torch.where(odd, other, answers.labels))
        labels = torch.where(odd, torch.full_like(answers.labels, NO_ANSWER), answers.labels)
        # Scores would answer what was refused.
        return Answers(labels)
