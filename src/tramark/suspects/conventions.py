"""Conventions: how a stranger's model wants its inputs and names its labels.

Raw questions are turned into inputs, and the model's outputs into labels of ours. Whatever is ambiguous is an error:
a guess would be worth nothing as evidence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SuspectError
from tramark.evidence.statistics import NO_ANSWER
from tramark.suspects.base import Answers

Prepare = Callable[[Tensor], Tensor]
Said = str | int | None

LARGEST_EDGE = 4096


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
    resample : how they are resized: "bilinear" (by default), "bicubic" or "nearest".
    crop : height and width of the middle that is cut out after resizing; by default nothing is cut off.
    colour : "grey", "rgb" or "bgr", to which images are converted; by default they are not.
    layout : "NCHW" or "NHWC": whether channels come before or after height and width.
    flat : whether each input is one row of numbers, in that layout.
    value_range : the values that 0 and 255 become; by default 0 and 1.
    mean, std : are applied after `value_range`: one value per channel in the model's order, or per column of a table.
    prepare : used if neither `value_range` nor `mean` nor `std` is stated: the `prepare` of a keyring's source, which
        normalises as the federation does.
    dtype : the type the model wants, such as "float16" or "uint8". By default the one it declares, or float32 for
        images.
    labels : our label for each of the model's labels, by its name or number: a mapping, or the model's names or numbers
        in the order of our labels. A label that is not in it is no answer.
    threshold : for a model with a single output: label 1 above it, label 0 otherwise.
    """

    size: tuple[int, int] | None = None
    resample: Literal["bilinear", "bicubic", "nearest"] | None = None
    crop: tuple[int, int] | None = None
    colour: Literal["grey", "rgb", "bgr"] | None = None
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    flat: bool = False
    value_range: tuple[float, float] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    prepare: Prepare | None = field(default=None, repr=False, compare=False)
    dtype: str | None = None
    labels: Mapping[Any, int] | Sequence[str | int] | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        for name in ("size", "crop", "value_range", "mean", "std", "labels"):
            # JSON has lists, not tuples.
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        if self.colour not in (None, "grey", "rgb", "bgr"):
            raise SuspectError(f"colour is {self.colour!r}: say grey, rgb or bgr")
        if self.layout not in ("NCHW", "NHWC"):
            raise SuspectError(f"layout is {self.layout!r}: say NCHW or NHWC")
        if self.resample not in (None, "bilinear", "bicubic", "nearest"):
            raise SuspectError(f"resample is {self.resample!r}: say bilinear, bicubic or nearest")
        for name in ("size", "crop"):
            wanted = getattr(self, name)
            if wanted is not None and (len(wanted) != 2 or not all(0 < edge <= LARGEST_EDGE for edge in wanted)):
                raise SuspectError(f"{name} is {wanted!r}: say (height, width), up to {LARGEST_EDGE} each")
        if self.value_range is not None and (
            len(self.value_range) != 2 or not -math.inf < self.value_range[0] < self.value_range[1] < math.inf
        ):
            raise SuspectError(f"value_range is {self.value_range!r}: say (lowest, highest)")
        if 0 in self.std or not all(map(math.isfinite, (*self.mean, *self.std))):
            raise SuspectError("mean and std must be finite, and std must not be zero")
        if self.dtype is not None and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise SuspectError(f"dtype is {self.dtype!r}: say float32, float16, uint8, int64 …")

    @property
    def normalised(self) -> bool:
        """Whether these conventions state how values are normalised."""
        return self.value_range is not None or bool(self.mean) or bool(self.std)

    def under(self, stated: Mapping[str, Any]) -> "Conventions":
        """These conventions, completed by what others state, such as a model's folder. What these state stands."""
        normalisation = ("value_range", "mean", "std")
        open_ = {name for name in stated if getattr(self, name) in (None, ())}
        return replace(self, **{n: stated[n] for n in open_ if n not in normalisation or not self.normalised})

    def with_names(self, names: Mapping[int, str]) -> "Conventions":
        """These conventions for a model that numbers its labels, if `labels` speaks of them by these names."""
        if self.labels is None:
            return self
        ours = {number: self._label(name) for number, name in names.items()}
        return replace(self, labels=ours) if any(label >= 0 for label in ours.values()) else self

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
            smooth = self.resample != "nearest"
            mode = (self.resample or "bilinear") if smooth else "nearest-exact"
            resized = F.interpolate(raw.float(), size=self.size, mode=mode, antialias=smooth)
            raw = resized.round().clamp(0, 255).to(torch.uint8)
        if self.crop is not None:
            (height, width), (rows, columns) = raw.shape[2:], self.crop
            if rows > height or columns > width:
                raise SuspectError(f"images of {height}×{width} cannot be cropped to {rows}×{columns}")
            top, left = (height - rows) // 2, (width - columns) // 2
            raw = raw[:, :, top : top + rows, left : left + columns]
        return raw

    def inputs(self, raw: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Raw questions as inputs of the model; `dtype` is the type it declares, if any."""
        image = raw.dtype == torch.uint8 and raw.ndim == 4
        inputs = self.pictures(raw) if image else raw
        prepare = None if self.normalised else self.prepare
        if prepare is not None:
            inputs = prepare(inputs)
        if image and self.colour == "bgr":
            inputs = inputs.flip(1)
        if prepare is None and (image or inputs.is_floating_point()):
            inputs = self._normalise(inputs, image)
        if image and self.layout == "NHWC":
            inputs = inputs.movedim(1, -1)
        if self.flat:
            inputs = inputs.flatten(1)
        wanted: torch.dtype = getattr(torch, self.dtype) if self.dtype else dtype or inputs.dtype
        if inputs.is_floating_point() and not wanted.is_floating_point:
            if (inputs - inputs.round()).abs().max() > 1e-3:
                raise SuspectError(
                    f"the suspect wants whole numbers ({wanted}): say value_range=(0, 255), without a mean"
                )
            inputs = inputs.round()
        return inputs.to(wanted).contiguous()

    def _normalise(self, inputs: Tensor, image: bool) -> Tensor:
        low, high = self.value_range or (0.0, 1.0)
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
