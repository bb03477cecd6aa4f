"""Sources of questions that are pictures: patterns of our own, WAFFLE's, and labelled images of another task.

Pictures are computed in double precision and rounded to bytes, so that they come out alike on every machine and can
travel as PNG files without changing.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.keys import streams


def normalise(raw: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes of N×C×H×W images as floats with the given mean and standard deviation per channel taken out."""
    channels = raw.shape[-3]
    means = torch.tensor(tuple(mean) or (0.5,) * channels, device=raw.device).view(-1, 1, 1)
    stds = torch.tensor(tuple(std) or (0.5,) * channels, device=raw.device).view(-1, 1, 1)
    return (raw.float() / 255 - means) / stds


class Normalised:
    """What all pictures share: how clients normalise them before the model sees them."""

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.normalisation})"

    @property
    def normalisation(self) -> str:
        """How pictures are normalised, in words."""
        if not self.mean and not self.std:
            return "normalisation not stated, mean 0.5 and std 0.5 assumed"
        mean, std = (", ".join(f"{value:g}" for value in dict.fromkeys(values)) for values in (self.mean, self.std))
        return f"mean {mean or 0.5}, std {std or 0.5}"

    def prepare(self, raw: Tensor) -> Tensor:
        """Raw pictures as the model is fed them."""
        return normalise(raw, self.mean, self.std)


@dataclass(frozen=True, repr=False)
class Patterns(Normalised):
    """Patterns of blocks and stripes for images of any shape, as strong as 8 bits can show them: the default.

    Each question is a random grid of dark and bright cells, or stripes, or the one cut out of the other, in colour
    for three in four; each variant adds uniform noise of `noise` times the full range. Some may have been `retouched`
    for a model: their pictures, as bytes, take the place of what the secret says.

    >>> Patterns((3, 32, 32)).render(b"s" * 32, question=0, variants=range(4)).shape
    torch.Size([4, 3, 32, 32])
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    noise: float = 0.1
    retouched: Mapping[int, bytes] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for question, picture in self.retouched.items():
            if len(picture) != math.prod(self.shape):
                raise SettingError(
                    f"the picture of question {question} has {len(picture)} bytes: {self.shape} takes "
                    f"{math.prod(self.shape)}"
                )

    def retouch(self, pictures: Mapping[int, Tensor]) -> Self:
        """The source with pictures of its own (bytes of C×H×W) for these questions, and for no others."""
        return replace(self, retouched={q: picture.cpu().numpy().tobytes() for q, picture in pictures.items()})

    def picture(self, secret: bytes, question: int) -> Tensor:
        """A question without noise: bytes of C×H×W."""
        if question in self.retouched:
            return torch.frombuffer(bytearray(self.retouched[question]), dtype=torch.uint8).view(self.shape)
        channels, height, width = self.shape
        down, across, colour, bright, kind = streams.fractions(
            secret, "pattern", "style", question, shape=(5,)
        ).tolist()
        finest = max(4, min(height, width) // 3)
        rows, columns = (3 + int(u * (finest - 2)) for u in (down, across))
        colours = channels if colour < 0.75 else 1
        cells = streams.fractions(secret, "pattern", "grid", question, shape=(colours, rows, columns))
        grid = (cells < 0.3 + 0.4 * bright).double()
        picture = _blocks(height, rows) @ grid @ _blocks(width, columns).T
        if kind < 0.5:
            styles = streams.fractions(secret, "pattern", "stripes", question, shape=(colours, 3)).tolist()
            stripes = torch.stack([_stripes(height, width, *style) for style in styles])
            picture = (
                stripes if kind < 1 / 6 else picture * stripes if kind < 1 / 3 else torch.maximum(picture, stripes)
            )
        whole: Tensor = (picture * 255).to(torch.uint8).expand(self.shape)
        return whole

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        return _with_noise(self.picture(secret, question), self.noise, secret, "pattern", question, variants)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "patterns",
            "shape": self.shape,
            "mean": self.mean,
            "std": self.std,
            "noise": self.noise,
            "retouched": {str(q): base64.b64encode(picture).decode() for q, picture in self.retouched.items()},
        }


@dataclass(frozen=True, repr=False)
class WafflePatterns(Normalised):
    """WAFFLE's patterns: a few random strokes at one place of an image of noise.

    Six strokes (eight in colour), each a line or an arc, are summed and binarised on a square of two thirds of
    the image's side, which sits at one random offset per question. Grey: pattern plus uniform noise, clipped.
    Colour: uniform noise per channel, with the strokes in one random colour. Variants differ in the noise alone.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        channels, height, width = self.shape
        side = int(2 / 3 * min(height, width) - 1)
        draws = streams.fractions(secret, "waffle", "strokes", question, shape=(8 if channels > 1 else 6, 4))
        stroke = torch.stack([_stroke(side, *draw) for draw in draws.tolist()]).sum(0) >= 0.5
        top, left = (
            int(u * (length - side + 1))
            for u, length in zip(
                streams.fractions(secret, "waffle", "offset", question, shape=(2,)).tolist(),
                (height, width),
                strict=True,
            )
        )
        mask = torch.zeros(height, width, dtype=torch.bool)
        mask[top : top + side, left : left + side] = stroke
        colour = streams.octets(secret, "waffle", "colour", question, shape=(channels, 1))
        images = []
        for variant in variants:
            image = streams.octets(secret, "waffle", "noise", question, variant, shape=self.shape).clone()
            image[:, mask] = 255 if channels == 1 else colour
            images.append(image)
        return torch.stack(images)

    def describe(self) -> dict[str, Any]:
        return {"kind": "waffle", "shape": self.shape, "mean": self.mean, "std": self.std}


def _stroke(side: int, kind: float, angle: float, x: float, y: float) -> Tensor:
    """One line or arc on a side × side raster of [-½, ½]², bright (0.8) where it passes."""
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side - 0.5
    dx, dy = axis[None, :] - (x - 0.5), axis[:, None] - (y - 0.5)
    across = math.cos(math.pi * angle) * dy - math.sin(math.pi * angle) * dx
    if kind < 0.5:
        distance = across.abs()
    else:
        ring = (torch.hypot(dx, dy) - 0.33 / 2).abs()
        distance = torch.where(across >= 0, ring, torch.full_like(ring, torch.inf))
    # A hair's breadth (0.001) with soft edges of 0.05, which binarises to strokes one or two pixels wide.
    return 0.8 * torch.exp(-((distance - 0.0005).clamp_min(0) ** 2) / (2 * 0.05**2))


@dataclass(frozen=True, repr=False)
class LabelledImages(Normalised):
    """Questions from a labelled image set of another task, as the paper does with MNIST and SVHN.

    Question q is a secret sample of the images labelled q (modulo the number of labels; disjoint samples for
    questions that share a label), and its variants are the images of that sample. Images are resized to `shape`
    and turned from grey to colour or back as needed. If the images are `ordered`, samples are not secret: they are
    taken in the images' order, as the paper's authors do.
    """

    images: Tensor
    labels: Tensor
    shape: tuple[int, int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    name: str = "images"
    per_question: int = 200
    ordered: bool = False

    def render(self, secret: bytes, question: int, variants: range) -> Tensor:
        kinds = int(self.labels.max()) + 1
        members = torch.nonzero(self.labels == question % kinds).flatten()
        secretly = streams.permutation(secret, "images", question % kinds, count=len(members))
        order = members if self.ordered else members[secretly]
        first = question // kinds * self.per_question
        wanted = torch.tensor([first + v for v in variants], dtype=torch.int64)
        if variants.stop > self.per_question or first + variants.stop > len(order):
            raise SettingError(
                f"question {question} wants {variants.stop} images labelled {question % kinds} of {self.name!r}, "
                f"which has {len(order)} of them in samples of {self.per_question}: ask for fewer questions or variants"
            )
        return fitted(self.images[order[wanted]], self.shape)

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.images.numpy().tobytes() + self.labels.numpy().tobytes()).hexdigest()
        # Descriptions of early versions do not have it: their keyrings' fingerprints must not change.
        return ({"ordered": True} if self.ordered else {}) | {
            "kind": "images",
            "shape": self.shape,
            "mean": self.mean,
            "std": self.std,
            "name": self.name,
            "per_question": self.per_question,
            "sha256": digest,
        }


def fitted(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Bytes of N×C×H×W images in another size, and from grey to colour or back."""
    channels, height, width = shape
    picture = images.double()
    if picture.shape[1] != channels:
        picture = picture.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if picture.shape[-2:] != (height, width):
        picture = F.interpolate(picture, size=(height, width), mode="bilinear", antialias=True)
    return picture.round().clamp(0, 255).to(torch.uint8)


def images_of(source: object) -> tuple[Tensor, Tensor] | None:
    """The labelled images that questions are taken from, which no vault keeps; None for all other sources."""
    return (source.images, source.labels) if isinstance(source, LabelledImages) else None


def _blocks(size: int, cells: int) -> Tensor:
    """Weights (size × cells) that blow up a row of cells in hard blocks."""
    return F.one_hot(torch.arange(size) * cells // size, cells).double()


def _stripes(height: int, width: int, angle: float, period: float, phase: float) -> Tensor:
    """Stripes at any angle that come again after two pixels to half the image."""
    y, x = torch.arange(height, dtype=torch.float64)[:, None], torch.arange(width, dtype=torch.float64)[None]
    along = math.cos(math.pi * angle) * x + math.sin(math.pi * angle) * y
    return ((along / (2 + period * min(height, width) / 2) + phase) % 1 < 0.5).double()


def _with_noise(picture: Tensor, amount: float, secret: bytes, kind: str, question: int, variants: range) -> Tensor:
    noise = torch.stack(
        [streams.octets(secret, kind, "noise", question, v, shape=tuple(picture.shape)) for v in variants]
    )
    noisy = picture.double() + (noise.double() - 127.5) * 2 * amount
    return noisy.round().clamp(0, 255).to(torch.uint8)
