"""What WAFFLE and FedTracker share: questions with one answer per class, which a server teaches to the base."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from tramark.errors import SettingError
from tramark.evidence.statistics import p_values, plurality
from tramark.fleet.scratch import device_of, loaded, seeded
from tramark.keys import streams
from tramark.keys.keyring import Part
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns
from tramark.keys.sources import Source
from tramark.lab.methods.base import Scene
from tramark.lab.methods.watermarked import Watermarked, answers
from tramark.suspects.base import Suspect


@dataclass(frozen=True, eq=False)
class ClassQuestions:
    """One question per class, in several variants to train on and as many others to verify with.

    >>> questions = ClassQuestions(WafflePatterns((1, 28, 28)), b"s" * 32, classes=10)
    >>> questions.count, len(questions.labels), questions.needed
    (10, 100, 8)

    Parameters
    ----------
    source, secret : what makes the questions.
    classes : class c is the answer to question c. With more classes than triggers, only the first get a question.
    triggers : how many variants there are to train on, over all questions.
    threshold : the share of right answers from which on a suspect is claimed where there are too few questions for a
        bound. It is a convention: with two classes, every fourth model gets both questions right by chance.
    false_claim : the bound on the probability of claiming a model that has nothing to do with the federation.
    """

    source: Source
    secret: bytes = field(repr=False)
    classes: int
    triggers: int = 100
    threshold: float = 0.8
    false_claim: float = 1e-6

    def __post_init__(self) -> None:
        if self.classes < 2 or self.triggers < 2:
            raise SettingError(
                f"{self.classes} classes and {self.triggers} triggers: there must be at least two of each"
            )
        if not (0 < self.threshold <= 1 and 0 < self.false_claim < 1):
            raise SettingError(f"threshold {self.threshold} and false_claim {self.false_claim} must be between 0 and 1")

    @classmethod
    def of(cls, scene: Scene, *, images: bool = False, **options: Any) -> Self:
        """A scene's: WAFFLE's patterns for images, the scene's own questions for tables and tokens.

        With `images`, a scene's labelled images stay what they are, and class c is the answer to those labelled c.
        """
        source, classes = scene.source, scene.classes
        if isinstance(source, LabelledImages) and images:
            counts = source.labels.bincount()
            # One question for each label, so that each may have all of its images.
            source, classes = replace(source, per_question=int(counts.min())), min(classes, len(counts))
        elif isinstance(source, Patterns | LabelledImages):
            source = WafflePatterns(source.shape, mean=source.mean, std=source.std)
        return cls(source, scene.secret, classes, **options)

    @property
    def count(self) -> int:
        """How many questions there are."""
        return min(self.classes, self.triggers)

    @cached_property
    def labels(self) -> Tensor:
        """The answers to all variants, question by question; the held-out ones are as many."""
        return torch.arange(self.triggers) * self.count // self.triggers

    @cached_property
    def trained(self) -> Tensor:
        """The raw variants to train on."""
        return self._render(first=0)

    @cached_property
    def held_out(self) -> Tensor:
        """The raw variants to verify with."""
        return self._render(first=self.triggers)

    def _render(self, first: int) -> Tensor:
        sizes = torch.bincount(self.labels, minlength=self.count).tolist()
        return torch.cat([self.source.render(self.secret, q, range(first, first + n)) for q, n in enumerate(sizes)])

    def generator(self, *context: str | int) -> torch.Generator:
        """For what the server draws; the same for the same context."""
        seed = int(streams.integers(self.secret, "server", *context, count=1, below=2**62))
        return torch.Generator().manual_seed(seed)

    @cached_property
    def needed(self) -> int | None:
        """How many of the m questions must be answered right for a claim; None if no number bears out the bound.

        A question is one piece of evidence however many variants of it are asked, for their answers hang together: its
        answer is the commonest one. A suspect made without the secret answers question c with class c with some
        probability q_c, independently for each question, for all questions are drawn alike and independently; so the
        q_c are how often it says which class to such questions, and add up to one at most. Of all such q_c, equal ones
        make k ≥ 2 right answers likeliest (Hoeffding 1956), so P(k or more) ≤ P(Binomial(m, 1/m) ≥ k).
        """
        p = p_values(self.count, self.count)
        k = max(2, int(np.argmax(p <= self.false_claim)))
        return k if k < len(p) and p[k] <= self.false_claim else None

    def ask(self, suspect: nn.Module | Suspect, part: Part = "held-out") -> Tensor:
        """A suspect's answers to the held-out variants, or to those trained on."""
        return answers(suspect, self.held_out if part == "held-out" else self.trained, self.source)

    def accuracy(self, said: Tensor) -> float:
        """The share of right ones among the answers to all variants."""
        return float((said == self.labels).double().mean())

    def claim(self, said: Tensor) -> bool:
        """Whether these answers show that the model is the federation's."""
        if self.needed is None:
            return self.accuracy(said) >= self.threshold
        commonest = [plurality(said[self.labels == question].tolist()) for question in range(self.count)]
        return sum(answer == question for question, answer in enumerate(commonest)) >= self.needed


@dataclass(frozen=True)
class Rehearsal:
    """Passes of SGD over questions until they are answered.

    Parameters
    ----------
    rate, momentum, weight_decay, batch_size : of SGD.
    clip : the norm that gradients are cut to.
    goal : enough right answers; none are asked for in the first `least` passes.
    passes : at most so many.
    doubling : after each so many passes in which the goal was not reached, the rate is doubled.
    statistics : whether batch norm follows the questions, as it must in a net that has seen nothing else; otherwise it
        is as in evaluation.
    live : whether everything is in training mode. Otherwise dropout never drops.
    summed : never reset the gradient, so that each step follows the sum of all gradients so far.
    """

    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 64
    clip: float = math.inf
    goal: float = 0.98
    least: int = 0
    passes: int = 100
    doubling: float = 10
    statistics: bool = False
    live: bool = False
    summed: bool = False

    def __post_init__(self) -> None:
        if not (min(self.rate, self.clip, self.batch_size, self.doubling) > 0 and self.passes >= self.least >= 0):
            raise SettingError(f"rate, clip, batch_size and doubling must be positive, passes at least `least`: {self}")
        if not 0 < self.goal <= 1:
            raise SettingError(f"the goal is a share of right answers, above 0 and up to 1, not {self.goal}")

    def __call__(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        generator: torch.Generator,
        project: Callable[[nn.Module], None] | None = None,
    ) -> int:
        """Train the model in place; gives how many passes it took. `project` may change each gradient."""
        device = device_of(model)
        inputs, labels = inputs.to(device), labels.to(device)
        moving = [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.SGD(moving, lr=self.rate, momentum=self.momentum, weight_decay=self.weight_decay)
        model.eval()
        model.zero_grad()
        done = 0
        with seeded(generator, device) if self.live else nullcontext():
            while done < self.least or (done < self.passes and self._share(model, inputs, labels) < self.goal):
                optimiser.param_groups[0]["lr"] = self.rate * 2 ** (max(0, done - self.least) // self.doubling)
                model.train(self.live)
                self._follow(model, self.statistics or self.live)
                for batch in self._batches(len(inputs), generator):
                    if not self.summed:
                        model.zero_grad()
                    F.cross_entropy(model(inputs[batch.to(device)]), labels[batch.to(device)]).backward()
                    if project is not None:
                        project(model)
                    if self.clip < math.inf:
                        nn.utils.clip_grad_norm_(moving, self.clip)
                    optimiser.step()
                model.eval()
                done += 1
        model.zero_grad()
        return done

    def _batches(self, count: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Batches of almost the same size, or, with summed gradients, full ones and the rest."""
        order = torch.randperm(count, generator=generator)
        return order.split(self.batch_size) if self.summed else order.tensor_split(math.ceil(count / self.batch_size))

    @torch.no_grad()
    def _share(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
        said = torch.cat([model(some).argmax(1) for some in inputs.split(256)])
        return float((said == labels).double().mean())

    @staticmethod
    def _follow(model: nn.Module, whether: bool) -> None:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train(whether)


class Taught(Watermarked):
    """A server that teaches the base one question per class. `questions` are the parameters of `ClassQuestions`."""

    def __init__(self, model: nn.Module, scene: Scene, **questions: Any) -> None:
        super().__init__(model, scene)
        self.questions = ClassQuestions.of(scene, **questions)

    def _teach(self, rehearsal: Rehearsal, project: Callable[[nn.Module], None] | None = None) -> None:
        questions = self.questions
        inputs = questions.source.prepare(questions.trained)
        order = questions.generator(type(self).__name__.lower(), self.round)
        with loaded(self.model, self.fleet) as model:
            rehearsal(model, inputs, questions.labels, generator=order, project=project)
            self.fleet.rebase(model.state_dict())
