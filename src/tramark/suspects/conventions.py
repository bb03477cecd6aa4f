"""Conventions: how a stranger's model wants its inputs and names its labels.

Raw questions are turned into inputs, and the model's outputs into labels of ours. Whatever is ambiguous is an error: a
guess would be worth nothing as evidence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SuspectError
from tramark.evidence.statistics import NO_ANSWER
from tramark.suspects.base import Answers

Prepare = Callable[[Tensor], Tensor]
Said = str | int | None


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
    size : height and width to which images are resized; by default they are not.
    colour : "grey", "rgb" or "bgr", to which images are converted; by default they are not.
    layout : "NCHW" or "NHWC": whether channels come before or after height and width.
    value_range : the values that 0 and 255 become.
    mean, std : are applied after `value_range`: one value per channel in the model's order, or per column of a table.
    prepare : replaces `value_range`, `mean` and `std`; for example, the `prepare` of a keyring's source.
    dtype : the type the model wants, such as "float16" or "uint8". By default the one it declares, or float32 for
        images.
    labels : our label for each of the model's labels, by its name or number: a mapping, or the model's names or numbers
        in the order of our labels. A label that is not in it is no answer.
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
            # JSON has lists, not tuples.
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
        """Raw images in the model's size and number of channels, still as bytes."""
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
        """Raw questions as inputs of the model; `dtype` is the type it declares, if any."""
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
        """The model's output for `count` questions, in our labels.

        `said` is a tensor of floats (a row of logits or probabilities per question), a tensor of integers (labels, or
        rows of labels with the best first), or a list of names or numbers, with None for no answer.
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
        # The maximum is NaN if any score is. Minus infinity is a fair log-probability, unless all scores are that.
        if not torch.isfinite(said.max(dim=1).values).all():
            raise SuspectError("the suspect's scores are not numbers (NaN or infinite): it is broken, or feigns it")
        if said.shape[1] == 1:
            if self.threshold is None:
                raise SuspectError(
                    "the suspect gives one number per question: say above which it means label 1 (threshold)"
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
        # In a mapping that was read from JSON, all keys are strings, numbers too.
        other = str(said) if isinstance(said, int) else int(said) if said.isdecimal() and len(said) < 10 else said
        return ours.get(said, ours.get(other, NO_ANSWER))


def conventions_of(given: Conventions | Prepare) -> Conventions:
    """The conventions given, or those of a model that uses our labels and is fed by `prepare`."""
    return given if isinstance(given, Conventions) else Conventions(prepare=given)
