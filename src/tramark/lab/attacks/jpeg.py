"""What JPEG does to images, in torch alone: a thief's input filter, and a verifier's."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tramark.errors import SettingError

# The quantisation tables of the JPEG standard (ITU-T T.81, Annex K).
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)


_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


# Luminance and the two chrominances of red, green and blue.
_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


def compress(raw: Tensor, quality: float) -> Tensor:
    """Bytes of N×C×H×W images as JPEG of this quality gives them back.

    Images of three channels are taken for red, green and blue, and their colour is halved in size; in others each
    channel is grey.

    >>> flat = torch.full((1, 1, 28, 28), 77, dtype=torch.uint8)
    >>> torch.equal(compress(flat, 75), flat)
    True
    """
    if not 1 <= quality <= 100:
        raise SettingError(f"a JPEG quality of {quality}: it goes from 1 to 100")
    picture = raw.float() - 128
    if raw.shape[1] != 3:
        return _bytes(_quantised(picture, _LUMINANCE, quality) + 128)
    turn = torch.tensor(_YCC, device=raw.device)
    # The shift by 128 is the luminance's: in the chrominances it cancels.
    whole = torch.einsum("ij,njhw->nihw", turn, picture).round()
    height, width = raw.shape[2:]
    even = F.pad(whole[:, 1:], (0, width % 2, 0, height % 2), mode="replicate")
    colour = _quantised(F.avg_pool2d(even, 2).round(), _CHROMINANCE, quality)
    colour = F.interpolate(colour, scale_factor=2, mode="bilinear")[..., :height, :width]
    coded = torch.cat([_quantised(whole[:, :1], _LUMINANCE, quality), colour], dim=1)
    return _bytes(torch.einsum("ij,njhw->nihw", torch.linalg.inv(turn), coded) + 128)


def _quantised(picture: Tensor, table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Values around zero, after their 8×8 blocks' cosine coefficients have been rounded to multiples of a table."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = ((torch.tensor(table, device=picture.device) * scale + 50) / 100).floor().clamp(1, 255)
    angle = torch.arange(8)[:, None] * (2 * torch.arange(8) + 1) * (math.pi / 16)
    cosines = (torch.cos(angle) / 2 * torch.where(torch.arange(8) == 0, 0.5**0.5, 1.0)[:, None]).to(picture.device)
    height, width = picture.shape[2:]
    padded = F.pad(picture, (0, -width % 8, 0, -height % 8), mode="replicate")
    blocks = padded.unfold(2, 8, 8).unfold(3, 8, 8)
    coded = (cosines @ blocks @ cosines.T / steps).round() * steps
    decoded = (cosines.T @ coded @ cosines).round().clamp(-128, 127)
    return decoded.transpose(3, 4).flatten(4, 5).flatten(2, 3)[..., :height, :width]


def _bytes(picture: Tensor) -> Tensor:
    return picture.round().clamp(0, 255).to(torch.uint8)
