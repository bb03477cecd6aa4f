"""Vision transformers with a class token and pre-norm blocks: the paper's for 64×64 images, and ViT-B/16.
Their attention is written out, so that its linear layers can be seen by name from outside."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim: int, heads: int, *, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a two-layer net, each with a way around it."""

    def __init__(self, dim: int, heads: int, hidden: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, bias=bias)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A transformer over the patches of an image.

    Positions begin as N(0, spread²), the class token as N(0, token²).
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        patch: int,
        dim: int,
        depth: int,
        heads: int,
        hidden: int,
        bias: bool = True,
        dropout: float = 0.0,
        spread: float = 0.02,
        token: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.patches = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        self.token = nn.Parameter(torch.randn(1, 1, dim) * token)
        places = (height // patch) * (width // patch) + 1
        self.places = nn.Parameter(torch.randn(1, places, dim) * spread)
        self.blocks = nn.Sequential(*(Block(dim, heads, hidden, bias=bias, dropout=dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])  # type: ignore[no-any-return]


def fitting_patch(input_shape: tuple[int, ...], wanted: int) -> int:
    """The largest patch up to the wanted one that tiles the image.

    >>> fitting_patch((3, 64, 64), 8), fitting_patch((1, 28, 28), 8)
    (8, 7)
    """
    _, height, width = input_shape
    common = math.gcd(height, width)
    patch = max(size for size in range(1, wanted + 1) if common % size == 0)
    if patch == 1:
        raise SettingError(f"no patch of 2 to {wanted} pixels tiles {height}×{width} images; pad or crop them")
    return patch


def vit(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's: patch 8, dim 512, 8 heads, depth 6, hidden 1024; 12.9 M weights for 64×64, 200 classes.

    As in its authors' code: dropout of 0.1, no bias in the attention, and token and positions from N(0, 1).
    """
    patch = fitting_patch(input_shape, 8)
    return VisionTransformer(
        input_shape, classes, patch=patch, dim=512, depth=6, heads=8, hidden=1024,
        bias=False, dropout=0.1, spread=1.0, token=1.0,
    )  # fmt: skip


def vit_b16(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ViT-B/16: patch 16, dim 768, 12 heads, depth 12, hidden 3072; 86 M weights."""
    patch = fitting_patch(input_shape, 16)
    return VisionTransformer(input_shape, classes, patch=patch, dim=768, depth=12, heads=12, hidden=3072)
