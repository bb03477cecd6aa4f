"""What a thief does to inputs before his model sees them.

Each kind leaves natural images nearly as they were, and is hoped to spoil questions that hang on details. The strengths
of the public evaluations: JPEG at quality 95, 65 or 45; Gaussian blur of σ = 0.5 to 0.7 pixels; the median of 3×3
pixels; Gaussian noise of 0.01 to 0.1 of the full range; colours of 4 bits; mirror images. All of it happens on bytes,
as in a service that is sent pictures. JPEG is Pillow's (`pip install 'tramark[lab]'`).

Noise works for tables, too, in units of each column's standard deviation, and for text, where it is the share of the
words that are drawn anew. As for random answers, the noise on an input is the same each time it is asked.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.answers import drawn, served
from tramark.lab.attacks.base import Loot
from tramark.suspects.base import Answers, Suspect

Kind = Literal["jpeg", "blur", "median", "noise", "bit-depth", "flip"]


STRENGTH: dict[Kind, float] = {"jpeg": 65, "blur": 0.6, "median": 3, "noise": 0.05, "bit-depth": 4, "flip": 1}
"""What each kind does unless told."""


@dataclass(frozen=True, eq=False)
class Fed:
    """A suspect whose inputs are changed before it sees them."""

    suspect: Suspect
    change: Callable[[Tensor], Tensor]

    def ask(self, raw: Tensor) -> Answers:
        return self.suspect.ask(self.change(raw))


@dataclass(frozen=True)
class Transform:
    """Inputs changed on their way to the model.

    >>> Transform("jpeg", 45)
    Transform(kind='jpeg', strength=45, seed=0)

    Parameters
    ----------
    kind : "jpeg", "blur", "median", "noise", "bit-depth" or "flip".
    strength : the quality (1 to 100), σ in pixels, the side of the square (odd), the noise's share of the full range,
        the number of bits (1 to 8), or the share of inputs that are mirrored.
    """

    kind: Kind
    strength: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in STRENGTH:
            raise SettingError(f"unknown transform {self.kind!r}: use one of {', '.join(STRENGTH)}")
        if self.strength is None:
            object.__setattr__(self, "strength", STRENGTH[self.kind])
        if not _ALLOWED[self.kind][0](self._strength):
            raise SettingError(f"a strength of {self.strength} for {self.kind}: it must be {_ALLOWED[self.kind][1]}")

    @property
    def _strength(self) -> float:
        assert self.strength is not None
        return self.strength

    def __call__(self, model: nn.Module, loot: Loot) -> Suspect:
        if loot.dataset.kind != "image" and self.kind != "noise":
            raise SettingError(
                f"{self.kind} changes images, but {loot.dataset.name} is {loot.dataset.kind}: use noise there"
            )
        if self.kind == "noise":
            return Fed(served(model, loot), self._noise(loot))
        return Fed(served(model, loot), self.change)

    def change(self, raw: Tensor) -> Tensor:
        """Images as the model gets to see them, as bytes again."""
        match self.kind:
            case "jpeg":
                return jpeg(raw, self._strength)
            case "blur":
                return blur(raw, self._strength)
            case "median":
                return median(raw, int(self._strength))
            case "noise":
                return _bytes(raw.float() + 255 * self._strength * self._normal(raw))
            case "bit-depth":
                steps = 2 ** int(self._strength) - 1
                return _bytes((raw.float() * (steps / 255)).round() * (255 / steps))
            case "flip":
                mirrored = drawn(raw, "flip", self.seed)[:, :, None, None] < self._strength
                return torch.where(mirrored.to(raw.device), raw.flip(-1), raw)

    def _noise(self, loot: Loot) -> Callable[[Tensor], Tensor]:
        if loot.dataset.kind == "image":
            return self.change
        if loot.dataset.kind == "text":
            return lambda raw: self._redraw_words(raw, loot.dataset.vocabulary)
        spread = self._strength * loot.inputs.std(0)
        return lambda raw: raw + spread.to(raw.device) * self._normal(raw)

    def _redraw_words(self, raw: Tensor, vocabulary: int) -> Tensor:
        chance, word = drawn(raw, "words", self.seed, count=2 * raw.shape[1]).to(raw.device).chunk(2, dim=1)
        # Padding is no word, and no word becomes padding.
        return torch.where((chance < self._strength) & (raw != 0), 1 + (word * (vocabulary - 1)).long(), raw)

    def _normal(self, raw: Tensor) -> Tensor:
        uniform = drawn(raw, "noise", self.seed, count=raw[0].numel() if len(raw) else 0)
        # The numbers are multiples of 2⁻²⁴: half a step more keeps them off both ends.
        normal: Tensor = torch.special.ndtri(uniform.double() + 2**-25)
        return normal.float().view(raw.shape).to(raw.device)


_ALLOWED: dict[Kind, tuple[Callable[[float], bool], str]] = {
    "jpeg": (lambda s: 1 <= s <= 100, "a quality from 1 to 100"),
    "blur": (lambda s: 0 < s < math.inf, "above 0"),
    "median": (lambda s: s >= 3 and s % 2 == 1, "an odd number of pixels, from 3 on"),
    "noise": (lambda s: 0 <= s < math.inf, "0 or above"),
    "bit-depth": (lambda s: s in range(1, 9), "a whole number of bits from 1 to 8"),
    "flip": (lambda s: 0 <= s <= 1, "a share from 0 to 1"),
}


def jpeg(raw: Tensor, quality: float) -> Tensor:
    """Bytes of N×C×H×W images after JPEG compression of this quality.

    Images of three channels are red, green and blue; in others each channel is compressed as a grey image.

    >>> flat = torch.full((1, 1, 28, 28), 77, dtype=torch.uint8)
    >>> torch.equal(jpeg(flat, 75), flat)
    True
    """
    if not 1 <= quality <= 100:
        raise SettingError(f"a JPEG quality of {quality}: it goes from 1 to 100")
    try:
        from PIL import Image
    except ImportError:
        raise SettingError("JPEG needs Pillow: pip install 'tramark[lab]'") from None
    colour = raw.shape[1] == 3
    # Pillow takes colour images as H×W×3.
    pictures = raw.cpu().permute(0, 2, 3, 1) if colour else raw.cpu().flatten(0, 1)
    decoded = []
    for picture in pictures.contiguous().numpy():
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "JPEG", quality=round(quality))
        decoded.append(torch.from_numpy(np.array(Image.open(file))))
    if not decoded:
        return raw
    compressed = torch.stack(decoded)
    return (compressed.permute(0, 3, 1, 2) if colour else compressed.view(raw.shape)).contiguous().to(raw.device)


def blur(raw: Tensor, sigma: float) -> Tensor:
    """Gaussian blur; the edge goes on outside."""
    reach = max(1, math.ceil(3 * sigma))
    kernel = torch.exp(-(torch.arange(-reach, reach + 1, device=raw.device) ** 2) / (2 * sigma**2))
    kernel /= kernel.sum()
    channels = raw.shape[1]
    picture = F.pad(raw.float(), (reach,) * 4, mode="replicate")
    picture = F.conv2d(picture, kernel.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)
    return _bytes(F.conv2d(picture, kernel.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels))


def median(raw: Tensor, side: int) -> Tensor:
    """The median of a square around each pixel, channel by channel; the edge goes on outside."""
    padded = F.pad(raw.float(), (side // 2,) * 4, mode="replicate")
    squares = padded.unfold(2, side, 1).unfold(3, side, 1).flatten(-2)
    return _bytes(squares.median(-1).values)


def _bytes(picture: Tensor) -> Tensor:
    return picture.round().clamp(0, 255).to(torch.uint8)
