"""Suspects: anything that answers questions.

A suspect is asked raw questions, as a keyring renders them (bytes of images, rows of a table, token ids). It
gives a label for each, or no answer. How it wants its inputs and names its labels is told in `Conventions`. An
adapter answers or raises a `SuspectError`: it never makes an answer up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tramark.errors import SuspectError

# A model that is asked in batches of one fixed size may not make us fill larger ones than this.
LARGEST_BATCH = 4096


@dataclass(frozen=True, eq=False)
class Answers:
    """A suspect's answers: a label for each question, or NO_ANSWER; and scores, if it gives them."""

    labels: Tensor
    scores: Tensor | None = None


Run = Callable[[Tensor], Tensor | list[Any]]


@dataclass(frozen=True)
class About:
    """What a file says about its model.

    `dtype` and `shape` are those of the input it declares, if any; `batch` is how many questions are asked at a time
    and `exact` whether it takes only that many. `names` are its labels' names, and `stated` the conventions in which
    the file says how it is fed.
    """

    dtype: str | None = None
    shape: tuple[int | None, ...] = ()
    batch: int = 256
    exact: bool = False
    names: Mapping[int, str] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A model from a file, ready to be asked: `run` takes inputs and gives scores, labels or names of labels."""

    run: Run
    about: About = About()


class Suspect(Protocol):
    """The protocol of all suspects."""

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""


class Adapter(Suspect, Protocol):
    """A suspect that can also show what it would be asked."""

    def preview(self, raw: Tensor) -> str:
        """A few lines on what asking these raw questions would do. Nothing is run and nothing is sent."""


def ask_in_batches(ask: Callable[[Tensor], Answers], raw: Tensor, size: int, *, exact: bool = False) -> Answers:
    """All answers, asked for `size` at a time. If a batch fails, the error carries the answers given before.

    If `exact`, `ask` takes batches of exactly that size: the last one is filled up with repeated questions, whose
    answers are dropped.
    """
    given: list[Answers] = []
    try:
        for batch in torch.split(raw, size):
            answers = ask(batch[torch.arange(size) % len(batch)] if exact else batch)
            scores = None if answers.scores is None else answers.scores[: len(batch)]
            given.append(Answers(answers.labels[: len(batch)], scores))
    except SuspectError as error:
        error.answers = _joined(given)
        raise
    return _joined(given)


def _joined(given: Sequence[Answers]) -> Answers:
    scores = [answers.scores for answers in given if answers.scores is not None]
    complete = scores and len(scores) == len(given) and len({s.shape[1] for s in scores}) == 1
    labels = torch.cat([torch.empty(0, dtype=torch.int64), *(answers.labels for answers in given)])
    return Answers(labels, torch.cat(scores) if complete else None)


def fixed_batch(declared: Sequence[Any]) -> int | None:
    """The batch size in a shape that a model declares, or None if it takes any."""
    size = declared[0] if declared else None
    if not isinstance(size, int) or size < 1:
        return None
    if size > LARGEST_BATCH:
        raise SuspectError(f"the suspect wants batches of {size}: up to {LARGEST_BATCH} can be given")
    return size


def check_shape(inputs: Tensor, declared: Sequence[Any]) -> None:
    """Raises an error unless the inputs have the shape that a model declares, if any; the batch size is not checked."""
    wanted = [size if isinstance(size, int) and size > 0 else None for size in declared]
    fits = len(wanted) == inputs.ndim and all(w in (None, g) for w, g in zip(wanted[1:], inputs.shape[1:], strict=True))
    if declared and not fits:
        shape = "×".join("?" if size is None else str(size) for size in wanted)
        raise SuspectError(
            f"the suspect wants inputs of shape {shape}, but the questions are "
            f"{'×'.join(map(str, inputs.shape))}: say how to convert them (size, colour, layout)"
        )


def preview_inputs(inputs: Tensor) -> str:
    """A line on the number, type, shape and range of a batch of inputs."""
    low, high = (inputs.min().item(), inputs.max().item()) if inputs.numel() else (math.nan, math.nan)
    dtype = str(inputs.dtype).removeprefix("torch.")
    return f"{len(inputs)} questions as {dtype} of shape {tuple(inputs.shape[1:])}, from {low:.4g} to {high:.4g}"
