"""Make public inputs: simple shapes, strokes and textures that come from a seed, and from no secret.

They show how a suspect is fed and read, before it is asked anything that counts. No client has an answer to them, so
nothing is disclosed and no error is spent. Tables and texts are drawn as their questions are, from the seed.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tramark.keys import streams
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns
from tramark.keys.sources import Source


def public_inputs(source: Source, seed: bytes, numbers: Sequence[int]) -> Tensor:
    """The public inputs of these numbers, raw, in the shape of a source's questions.

    >>> public_inputs(Patterns((1, 8, 8)), b"seed", range(6)).shape
    torch.Size([6, 1, 8, 8])
    """
    if isinstance(source, (Patterns, WafflePatterns, LabelledImages)):
        plain = Patterns(source.shape)
        return torch.stack([_picture(plain, seed, number) for number in numbers])
    return torch.cat([source.render(seed, number, range(1)) for number in numbers])


def _picture(patterns: Patterns, seed: bytes, number: int) -> Tensor:
    """One of five kinds of pictures in turn: shapes, strokes, textured shapes, smooth fields, patterns."""
    channels, height, width = patterns.shape
    kind = number % 5
    if kind == 4:
        return patterns.picture(seed, number)
    draws = streams.fractions(seed, "public", number, shape=(8, 8)).double()
    side = max(height, width)
    y = (torch.arange(height, dtype=torch.float64)[:, None] + 0.5 - height / 2) / side
    x = (torch.arange(width, dtype=torch.float64)[None] + 0.5 - width / 2) / side
    if kind == 3:
        picture = _field(y, x, draws, channels)
    else:
        picture = torch.zeros(channels, height, width, dtype=torch.float64)
        for row in draws[: 2 + int(draws[0, 7] * 4)]:
            mask = _stroke(y, x, row) if kind == 1 else _blob(y, x, row)
            if kind == 2:
                across = math.cos(math.pi * row[6]) * x + math.sin(math.pi * row[6]) * y
                mask = mask * (0.6 + 0.4 * torch.sin(2 * math.pi * across * (4 + 8 * row[5])))
            tint = 0.4 + 0.6 * row[torch.arange(channels) % 3 + 3].view(-1, 1, 1)
            picture = torch.maximum(picture, mask * (tint if channels > 1 else 0.4 + 0.6 * row[4]))
        # Photographs have bright backgrounds as often as dark ones; scans have dark ones.
        if channels > 1 and draws[1, 7] < 0.5:
            picture = 1 - picture
    return (picture.clamp(0, 1) * 255).round().to(torch.uint8)


def _blob(y: Tensor, x: Tensor, row: Tensor) -> Tensor:
    """A soft-edged ellipse or rectangle near the middle."""
    dy, dx = (y - 0.5 * (row[0] - 0.5)) / (0.08 + 0.4 * row[2]), (x - 0.4 * (row[1] - 0.5)) / (0.08 + 0.3 * row[3])
    distance = torch.hypot(dy, dx) if row[6] < 0.5 else torch.maximum(dy.abs() + 0 * dx, dx.abs() + 0 * dy)
    return torch.sigmoid((1 - distance) * 12)


def _stroke(y: Tensor, x: Tensor, row: Tensor) -> Tensor:
    """A thick line or ring."""
    dy, dx = y - 0.5 * (row[0] - 0.5), x - 0.5 * (row[1] - 0.5)
    angle, thick = math.pi * row[2], 0.04 + 0.05 * row[3]
    across = math.cos(angle) * dy - math.sin(angle) * dx
    along = math.sin(angle) * dy + math.cos(angle) * dx
    if row[6] < 0.6:
        distance = torch.hypot(across, (along.abs() - 0.3 * row[5]).clamp_min(0))
    else:
        distance = (torch.hypot(dy, dx) - (0.1 + 0.15 * row[5])).abs()
    return torch.sigmoid((thick - distance) * 60)


def _field(y: Tensor, x: Tensor, draws: Tensor, channels: int) -> Tensor:
    """A smooth random field."""
    planes = []
    for channel in range(channels):
        waves = [
            torch.sin(2 * math.pi * ((row[0] - 0.5) * 5 * x + (row[1] - 0.5) * 5 * y + row[2 + channel % 3]))
            for row in draws
        ]
        planes.append(torch.stack(waves).sum(0))
    field = torch.stack(planes)
    return (field - field.min()) / (field.max() - field.min()).clamp_min(1e-9)
