"""Suspects: anything that answers questions.

A suspect is asked raw questions, as a keyring renders them (bytes of images, rows of a table, token ids), and
gives answers: a label for each, or none. How a stranger's model wants its inputs and names its labels is the
adapter's business, and is told in `Conventions`. An adapter answers or raises a `SuspectError`: it never
makes an answer up.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NO_ANSWER = -1

Prepare = Callable[[Tensor], Tensor]
Said = str | int | None


@dataclass(frozen=True, eq=False)
class Answers:
    """What a suspect said: a label for each question, or NO_ANSWER, and scores if it offers them."""

    labels: Tensor
    scores: Tensor | None = None


class SuspectError(Exception):
    """A suspect that cannot be asked, or not be believed. `answers` are those given before, if any."""

    answers: Answers | None = None


class SuspectUnavailable(SuspectError):  # noqa: N818
    """The suspect did not answer this time, after all retries. It may later."""


class BudgetSpent(SuspectError):  # noqa: N818
    """The suspect may be asked no more: the query budget is spent."""


class Suspect(Protocol):
    """One small protocol for all suspects."""

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""


class Adapter(Suspect, Protocol):
    """A suspect that can also say, without being asked anything, what it would be asked."""

    def preview(self, raw: Tensor) -> str:
        """What asking these raw questions would do, in a few lines. Nothing is run and nothing is sent."""


@dataclass(frozen=True)
class Conventions:
    """How a stranger's model wants its input and names its labels.

    >>> raw = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    >>> Conventions(size=(224, 224), colour="rgb", mean=(0.485, 0.456, 0.406)).inputs(raw).shape
    torch.Size([2, 3, 224, 224])
    >>> Conventions(labels={"cat": 0, "dog": 1}).answers(["dog", "horse"], count=2).labels
    tensor([ 1, -1])

    Parameters
    ----------
    size : height and width that images are resized to; as they are, without it.
    colour : "grey", "rgb" or "bgr"; as they are, without it.
    layout : where the channels stand.
    value_range : what 0 and 255 become; `mean` and `std` (one per channel as the model gets them, or per
        column of a table) are taken out after that.
    prepare : what is done in place of `value_range`, `mean` and `std`, such as the `prepare` of a keyring's
        triggers.
    dtype : the type the model wants, such as "float16" or "uint8". Without it, the one it declares, or
        float32 for images.
    labels : which of our labels each of the model's labels is, by its name or number: a mapping, or its names
        or numbers in the order of our labels. A label that is not in it is no answer.
    threshold : for a model with a single output: label 1 above it, label 0 otherwise.
    """

    size: tuple[int, int] | None = None
    colour: Literal["grey", "rgb", "bgr"] | None = None
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    value_range: tuple[float, float] = (0.0, 1.0)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    prepare: Prepare | None = field(default=None, repr=False, compare=False)
    dtype: str | None = None
    labels: Mapping[Any, int] | Sequence[str | int] | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("size", "value_range", "mean", "std", "labels"):
            # What was read from a file comes as lists.
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if self.colour not in (None, "grey", "rgb", "bgr"):
            raise SuspectError(f"colour is {self.colour!r}: say grey, rgb or bgr")
        if self.layout not in ("NCHW", "NHWC"):
            raise SuspectError(f"layout is {self.layout!r}: say NCHW or NHWC")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise SuspectError(f"size is {self.size!r}: say (height, width)")
        if len(self.value_range) != 2 or not self.value_range[0] < self.value_range[1]:
            raise SuspectError(f"value_range is {self.value_range!r}: say (lowest, highest)")
        if 0 in self.std or not all(map(math.isfinite, (*self.mean, *self.std))):
            raise SuspectError("mean and std must be finite, and std must not be zero")
        if self.dtype is not None and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise SuspectError(f"dtype is {self.dtype!r}: say float32, float16, uint8, int64 …")

    def pictures(self, raw: Tensor) -> Tensor:
        """Raw images in the size and number of channels that the model wants, still as bytes."""
        channels, wanted = raw.shape[1], {None: raw.shape[1], "grey": 1}.get(self.colour, 3)
        if channels != wanted:
            if {channels, wanted} != {1, 3}:
                raise SuspectError(f"images of {channels} channels cannot be turned into {self.colour}")
            luma = torch.tensor((0.299, 0.587, 0.114), device=raw.device).view(3, 1, 1)
            grey = raw if channels == 1 else (raw * luma).sum(1, keepdim=True).round().to(torch.uint8)
            raw = grey.expand(-1, wanted, -1, -1)
        if self.size is not None and raw.shape[2:] != self.size:
            resized = F.interpolate(raw.float(), size=tuple(self.size), mode="bilinear", antialias=True)
            raw = resized.round().clamp(0, 255).to(torch.uint8)
        return raw

    def inputs(self, raw: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Raw questions as the model wants them; `dtype` is what it declares, if it does."""
        image = raw.dtype == torch.uint8 and raw.ndim == 4
        inputs = self.pictures(raw) if image else raw
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        if image and self.colour == "bgr":
            inputs = inputs.flip(1)
        if self.prepare is None and (image or inputs.is_floating_point()):
            inputs = self._normalise(inputs, image)
        if image and self.layout == "NHWC":
            inputs = inputs.movedim(1, -1)
        wanted: torch.dtype = getattr(torch, self.dtype) if self.dtype else dtype or inputs.dtype
        if inputs.is_floating_point() and not wanted.is_floating_point:
            if (inputs - inputs.round()).abs().max() > 1e-3:
                raise SuspectError(
                    f"the suspect wants whole numbers ({wanted}): say value_range=(0, 255), without a mean"
                )
            inputs = inputs.round()
        return inputs.to(wanted).contiguous()

    def _normalise(self, inputs: Tensor, image: bool) -> Tensor:
        low, high = self.value_range
        if image:
            inputs = inputs.float() * ((high - low) / 255) + low
        columns = inputs.shape[1]
        if {len(self.mean), len(self.std)} - {0, 1, columns}:
            raise SuspectError(f"{len(self.mean)} means and {len(self.std)} stds for {columns} channels: give as many")
        shape = (-1, 1, 1) if image else (-1,)
        mean = torch.tensor(self.mean or (0.0,), dtype=inputs.dtype, device=inputs.device).view(shape)
        std = torch.tensor(self.std or (1.0,), dtype=inputs.dtype, device=inputs.device).view(shape)
        return (inputs - mean) / std

    def answers(self, said: Tensor | Sequence[Said], count: int) -> Answers:
        """What the model said to `count` questions, in our labels.

        A tensor of floats is one row of scores (logits or probabilities) per question; integers are labels,
        or rows of them with the best first; a list has names or numbers, with None for no answer.
        """
        if not isinstance(said, Tensor):
            if len(said) != count:
                raise SuspectError(f"{count} questions were asked, but {len(said)} answers came")
            return Answers(torch.tensor([self._label(one) for one in said], dtype=torch.int64))
        if said.ndim not in (1, 2) or said.shape[0] != count or said.numel() < count:
            raise SuspectError(f"{count} questions were asked, but the answers are of shape {tuple(said.shape)}")
        said = said.detach().cpu().reshape(count, -1)
        if not said.is_floating_point():
            return self.answers(said[:, 0].tolist(), count)
        # A maximum is NaN where any score is; minus infinity is a fair logarithm of zero, but not everywhere.
        if not torch.isfinite(said.max(dim=1).values).all():
            raise SuspectError("the suspect's scores are not numbers (NaN or infinite): it is broken, or means to be")
        if said.shape[1] == 1:
            if self.threshold is None:
                raise SuspectError(
                    "the suspect gives one number per question: say from where on it means 1 (threshold)"
                )
            return self.answers((said[:, 0] > self.threshold).long(), count)
        ours = [self._label(column) for column in range(said.shape[1])]
        labels = torch.tensor(ours, dtype=torch.int64)[said.argmax(dim=1)]
        if self.labels is None:
            return Answers(labels, said)
        scores = said.new_full((count, 1 + max(0, *ours)), -math.inf)
        for column, label in enumerate(ours):
            if label != NO_ANSWER:
                scores[:, label] = torch.maximum(scores[:, label], said[:, column])
        return Answers(labels, scores)

    def _label(self, said: Said) -> int:
        if said is None:
            return NO_ANSWER
        if self.labels is None:
            if isinstance(said, str) and not said.isdecimal():
                raise SuspectError(
                    f"the suspect answers with names, such as {said[:40]!r}: say which label each is (labels)"
                )
            return int(said) if len(str(said)) < 10 and int(said) >= 0 else NO_ANSWER
        ours = self.labels if isinstance(self.labels, Mapping) else {name: i for i, name in enumerate(self.labels)}
        # The keys of a mapping that was read from JSON are strings, whatever they were meant to be.
        other = str(said) if isinstance(said, int) else int(said) if said.isdecimal() and len(said) < 10 else said
        return ours.get(said, ours.get(other, NO_ANSWER))


def conventions_of(given: Conventions | Prepare) -> Conventions:
    """Conventions as they are; or those of a model that is fed what `prepare` makes and uses our labels."""
    return given if isinstance(given, Conventions) else Conventions(prepare=given)


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


class ModuleSuspect:
    """A torch module in memory.

    >>> suspect = ModuleSuspect(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), Conventions())
    >>> suspect.ask(torch.zeros(16, 1, 28, 28, dtype=torch.uint8)).labels.shape
    torch.Size([16])

    `conventions` may be just a `prepare`, such as that of a keyring's triggers. The module is run where its
    weights are, in evaluation mode and without gradients, and left as it was.
    """

    def __init__(self, module: nn.Module, conventions: Conventions | Prepare, *, batch: int = 256) -> None:
        self.module, self.conventions, self.batch = module, conventions_of(conventions), batch

    def __repr__(self) -> str:
        return f"ModuleSuspect({type(self.module).__name__}, {self.conventions!r})"

    def ask(self, raw: Tensor) -> Answers:
        """Answers to a batch of raw questions."""
        with _evaluating(self.module), torch.no_grad():
            return ask_in_batches(self._ask, raw, self.batch)

    def preview(self, raw: Tensor) -> str:
        """What the module would be fed."""
        return f"{type(self.module).__name__} in memory\n{preview_inputs(self.conventions.inputs(raw))}"

    def _ask(self, raw: Tensor) -> Answers:
        inputs = self.conventions.inputs(raw)
        weights = next(chain(self.module.parameters(), self.module.buffers()), inputs)
        try:
            output = self.module(inputs.to(weights.device))
        except SuspectError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape)
            raise SuspectError(f"the suspect fails on inputs of shape {shape} ({one_line(error)})") from error
        return self.conventions.answers(_tensor(output), len(raw))


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _tensor(output: Any) -> Tensor:
    """The scores or labels among all that a module may return."""
    if isinstance(output, Mapping):
        output = output.get("logits", next(iter(output.values()), None))
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise SuspectError(f"the suspect returns {type(output).__name__}: a tensor of scores or labels is wanted")
    return output


def preview_inputs(inputs: Tensor) -> str:
    """A line on what a batch of inputs looks like."""
    low, high = (inputs.min().item(), inputs.max().item()) if inputs.numel() else (math.nan, math.nan)
    dtype = str(inputs.dtype).removeprefix("torch.")
    return f"{len(inputs)} questions as {dtype} of shape {tuple(inputs.shape[1:])}, from {low:.4g} to {high:.4g}"


def one_line(error: BaseException | str, limit: int = 160) -> str:
    """An error of somebody else's making, short and harmless to a terminal."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(error)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


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
