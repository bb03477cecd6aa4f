"""Suspects: anything that answers questions.

A suspect is asked raw questions, as a keyring renders them (bytes of images, rows of a table, token ids), and
gives answers: a label for each, or none. How a stranger's model wants its inputs and names its labels is the
adapter's business, and is told in `Conventions`. An adapter answers or raises a `SuspectError`: it never
makes an answer up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tramark.errors import SuspectError


@dataclass(frozen=True, eq=False)
class Answers:
    """What a suspect said: a label for each question, or NO_ANSWER, and scores if it offers them."""

    labels: Tensor
    scores: Tensor | None = None


class Suspect(Protocol):
    """One small protocol for all suspects."""

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""


class Adapter(Suspect, Protocol):
    """A suspect that can also say, without being asked anything, what it would be asked."""

    def preview(self, raw: Tensor) -> str:
        """What asking these raw questions would do, in a few lines. Nothing is run and nothing is sent."""


def ask_in_batches(ask: Callable[[Tensor], Answers], raw: Tensor, size: int) -> Answers:
    """All answers, asked for `size` at a time. If that fails midway, the error carries those until then."""
    given: list[Answers] = []
    try:
        for batch in torch.split(raw, size):
            given.append(ask(batch))
    except SuspectError as error:
        error.answers = _joined(given)
        raise
    return _joined(given)


def _joined(given: Sequence[Answers]) -> Answers:
    scores = [answers.scores for answers in given if answers.scores is not None]
    complete = scores and len(scores) == len(given) and len({s.shape[1] for s in scores}) == 1
    labels = torch.cat([torch.empty(0, dtype=torch.int64), *(answers.labels for answers in given)])
    return Answers(labels, torch.cat(scores) if complete else None)


def preview_inputs(inputs: Tensor) -> str:
    """A line on what a batch of inputs looks like."""
    low, high = (inputs.min().item(), inputs.max().item()) if inputs.numel() else (math.nan, math.nan)
    dtype = str(inputs.dtype).removeprefix("torch.")
    return f"{len(inputs)} questions as {dtype} of shape {tuple(inputs.shape[1:])}, from {low:.4g} to {high:.4g}"


def check_shape(inputs: Tensor, declared: Sequence[Any]) -> None:
    """Inputs must be of the shape that a model declares, if it does; the size of a batch is left open."""
    wanted = [size if isinstance(size, int) and size > 0 else None for size in declared]
    fits = len(wanted) == inputs.ndim and all(w in (None, g) for w, g in zip(wanted[1:], inputs.shape[1:], strict=True))
    if declared and not fits:
        shape = "×".join("?" if size is None else str(size) for size in wanted)
        raise SuspectError(
            f"the suspect wants inputs of shape {shape}, but the questions are "
            f"{'×'.join(map(str, inputs.shape))}: say how to convert them (size, colour, layout)"
        )


def padded(inputs: Tensor, size: int) -> Tensor:
    """Inputs repeated up to the one batch size that a model was exported for."""
    return inputs[torch.arange(size) % len(inputs)]
