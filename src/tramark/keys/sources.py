"""Make questions: inputs that no client's data looks like, each in any number of noisy variants.

A source of questions is a small frozen description (which kind, which shape, how much noise). Given the
federation's secret, the number of a question and the numbers of its variants it renders *raw* inputs: bytes
for images, so that a question can travel as a PNG without changing; numbers for tables; ids for tokens.
Pictures are computed in double precision and rounded to bytes, so that they come out alike on every machine.
`prepare` turns raw inputs into what the model is fed. Each question has its own pattern, row or tokens; its
variants differ by noise, so that marks can be made with some variants and suspects asked others.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.keys import streams
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns

Normalise = tuple[float | Sequence[float], float | Sequence[float]]
"""The mean and the standard deviation with which clients normalise pictures, one number or one a channel each."""


class Source(Protocol):
    """A source of questions."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        """The raw inputs of the given variants of a question, stacked."""

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw inputs as the model wants them."""

    def describe(self) -> dict[str, Any]:
        """What `from_description` needs to make the same source again."""


@dataclass(frozen=True)
class Vectors:
    """Questions for tables whose numeric columns are standardised and whose categories are one-hot.

    `groups` gives the widths of the one-hot blocks, which stand behind the numeric columns. A question draws
    numbers from ±`spread` standard deviations and one category per block; a variant adds noise to the numbers
    and re-draws each category with probability `noise`.

    >>> Vectors(10, groups=(3, 4)).render(b"s" * 32, question=0, variants=range(2)).shape
    torch.Size([2, 10])
    """

    features: int
    groups: tuple[int, ...] = ()
    spread: float = 3.0
    noise: float = 0.05

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        numeric = self.features - sum(self.groups)
        if numeric < 0:
            raise SettingError(
                f"one-hot groups of {sum(self.groups)} columns in all, but only {self.features} features"
            )
        centre = (2 * streams.fractions(secret, "vector", question, shape=(numeric,)) - 1) * self.spread
        kinds = streams.fractions(secret, "vector", "groups", question, shape=(len(self.groups),)).tolist()
        rows = []
        for variant in variants:
            jitter = 2 * streams.fractions(secret, "vector", question, variant, shape=(numeric,)) - 1
            row = [centre + jitter * self.noise * self.spread]
            redraw = streams.fractions(
                secret, "vector", "groups", question, variant, shape=(len(self.groups), 2)
            ).tolist()
            for width, kind, (chance, other) in zip(self.groups, kinds, redraw, strict=True):
                choice = int((other if chance < self.noise else kind) * width)
                row.append(F.one_hot(torch.tensor(choice), width).float())
            rows.append(torch.cat(row))
        return torch.stack(rows)

    def prepare(self, raw: Tensor) -> Tensor:
        return raw

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "vectors",
            "features": self.features,
            "groups": self.groups,
            "spread": self.spread,
            "noise": self.noise,
        }


@dataclass(frozen=True)
class Tokens:
    """Questions for text: one to `distinct` tokens, each in a block of its own; a variant re-draws a few positions.

    Ids below `first` (padding, unknown …) are never drawn. Where `distinct` is 0, the token at every position is drawn
    by itself.

    >>> Tokens(9, vocabulary=500).render(b"s" * 32, question=0, variants=range(1))
    tensor([[444, 444, 444, 444, 444, 211, 211, 211, 211]])
    """

    length: int
    vocabulary: int
    first: int = 2
    noise: float = 0.03
    distinct: int = 4

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        below = self.vocabulary - self.first
        if self.distinct:
            tokens = self._blocks(secret, question, below)
        else:
            tokens = streams.integers(secret, "tokens", question, count=self.length, below=below)
        rows = []
        for variant in variants:
            others = streams.integers(secret, "tokens", question, variant, count=self.length, below=below)
            chance = streams.fractions(secret, "tokens", "noise", question, variant, shape=(self.length,))
            rows.append(torch.where(chance < self.noise, others, tokens) + self.first)
        return torch.stack(rows)

    def _blocks(self, secret: bytes, question: int, below: int) -> Tensor:
        """Some different tokens, as many times each as the length allows, one after another."""
        many, *draws = streams.integers(secret, "blocks", question, count=1 + self.distinct, below=2**62).tolist()
        tokens: list[int] = []
        for draw in draws[: 1 + many % min(self.distinct, self.length, below)]:
            token = draw % (below - len(tokens))
            # The token-th of those that are left.
            for earlier in sorted(tokens):
                token += token >= earlier
            tokens.append(token)
        return torch.tensor(tokens)[torch.arange(self.length) * len(tokens) // self.length]

    def prepare(self, raw: Tensor) -> Tensor:
        return raw

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "tokens",
            "length": self.length,
            "vocabulary": self.vocabulary,
            "first": self.first,
            "noise": self.noise,
            "distinct": self.distinct,
        }


def for_shape(shape: tuple[int, ...], *, normalise: Normalise | None = None) -> Source:
    """The default source of questions for inputs of a shape: patterns for C×H×W images, vectors for tables."""
    if len(shape) == 3:
        channels, height, width = shape
        mean, std = ((), ()) if normalise is None else (_per_channel(one, channels) for one in normalise)
        return Patterns((channels, height, width), mean=mean, std=std)
    if normalise is not None:
        raise SettingError(f"normalise is for pictures of C×H×W, not for inputs of shape {shape}")
    if len(shape) == 1:
        return Vectors(shape[0])
    raise SettingError(f"no default questions for inputs of shape {shape}: pass source=… (say, Tokens for text)")


def _per_channel(given: float | Sequence[float], channels: int) -> tuple[float, ...]:
    values = tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),) * channels
    if len(values) != channels:
        raise SettingError(f"normalise has {len(values)} numbers for {channels} channels: give one, or one a channel")
    return values


def from_description(description: dict[str, Any], *, images: tuple[Tensor, Tensor] | None = None) -> Source:
    """The source that `describe` described; a labelled image set must be given again, and is checked."""
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description.items()}
    kind, sha256 = options.pop("kind"), options.pop("sha256", None)
    match kind:
        case "patterns":
            # Missing in vaults that were written before questions were retouched.
            pictures = options.pop("retouched", {}).items()
            return Patterns(**options, retouched={int(q): base64.b64decode(text) for q, text in pictures})
        case "waffle":
            return WafflePatterns(**options)
        case "vectors":
            return Vectors(**options)
        case "tokens":
            # Missing in vaults that were written before questions were made of blocks.
            return Tokens(**{"distinct": 0} | options)
        case "images":
            if images is None:
                raise SettingError(
                    f"these questions are images of {options['name']!r}: pass them as images=(inputs, labels)"
                )
            source = LabelledImages(*images, **options)
            if source.describe()["sha256"] != sha256:
                raise SettingError(f"these are not the images of {options['name']!r} that the questions were made from")
            return source
    raise SettingError(f"unknown kind of questions {kind!r}")
