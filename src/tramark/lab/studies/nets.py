"""Nets as strangers write them: the kinds of layers, normalisations and ways around that the zoo's federations train.

They are small, for a federation of the zoo must train in minutes, and written in the usual ways rather than in ways
that suit us: modules without a graph (LSTM, `nn.TransformerEncoder`), in-place activations, no hidden linear layer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab import models
from tramark.lab.data import Dataset
from tramark.lab.models.vit import VisionTransformer, fitting_patch


def _conv(inputs: int, outputs: int, norm: Callable[[int], nn.Module], *, pool: bool = True) -> list[nn.Module]:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU(inplace=True)]
    return [*layers, nn.MaxPool2d(2)] if pool else layers


def bn_cnn(data: Dataset, hidden: int = 128, dropout: float = 0.0) -> nn.Module:
    """Three convolutions with batch norm, a hidden linear layer, dropout before the head."""
    channels, height, width = data.input_shape
    return nn.Sequential(
        *_conv(channels, 16, nn.BatchNorm2d),
        *_conv(16, 32, nn.BatchNorm2d),
        *_conv(32, 32, nn.BatchNorm2d, pool=False),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), hidden),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(hidden, data.classes),
    )


def bn_cnn_bn(data: Dataset) -> nn.Module:
    """Like `bn_cnn`, with batch norm and dropout behind the hidden layer too."""
    channels, height, width = data.input_shape
    return nn.Sequential(
        *_conv(channels, 16, nn.BatchNorm2d),
        *_conv(16, 32, nn.BatchNorm2d),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 128, bias=False),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, data.classes),
    )


def bn_convolutions(data: Dataset) -> nn.Module:
    """Convolutions with batch norm, the mean over places, and a head: no hidden linear layer."""
    return nn.Sequential(
        *_conv(data.input_shape[0], 24, nn.BatchNorm2d),
        *_conv(24, 48, nn.BatchNorm2d),
        *_conv(48, 64, nn.BatchNorm2d, pool=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, data.classes),
    )


class _Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def _groups(width: int) -> nn.Module:
    return nn.GroupNorm(8, width)


def group_norm_residual(data: Dataset) -> nn.Module:
    """A residual net with group norm, the mean over places, and a head."""
    return nn.Sequential(
        *_conv(data.input_shape[0], 32, _groups),
        _Residual(32, _groups),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 1),
        _Residual(64, _groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, data.classes),
    )


class _ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        added: Tensor = x + y.permute(0, 3, 1, 2)
        return added


def convnext(data: Dataset) -> nn.Module:
    """Patches of 4, blocks of depthwise convolution and a two-layer net with a way around, as ConvNeXt has them."""
    return nn.Sequential(
        nn.Conv2d(data.input_shape[0], 48, 4, stride=4),
        _ConvNeXtBlock(48),
        _ConvNeXtBlock(48),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(48),
        nn.Linear(48, data.classes),
    )


def small_vit(data: Dataset) -> nn.Module:
    """A vision transformer of width 64 and depth 3."""
    patch = fitting_patch(data.input_shape, 7)
    return VisionTransformer(data.input_shape, data.classes, patch=patch, dim=64, depth=3, heads=4, hidden=128)


class _Encoder(nn.Module):
    """`nn.TransformerEncoder` over tokens, their mean, and a head."""

    def __init__(self, data: Dataset, dim: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.vocabulary, dim, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(1, data.input_shape[0], dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(dim, data.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.encoder(self.embedding(tokens) + self.places, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        pooled: Tensor = self.head((x * kept).sum(1) / kept.sum(1).clamp_min(1))
        return pooled


class _Recurrent(nn.Module):
    """An LSTM or GRU over tokens, its last or mean state, and a head of one or two layers."""

    def __init__(
        self, data: Dataset, kind: type[nn.LSTM] | type[nn.GRU], *, both_ways: bool, hidden: int | None
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.vocabulary, 64, padding_idx=0)
        self.rnn = kind(64, 64, batch_first=True, bidirectional=both_ways)
        width = 128 if both_ways else 64
        self.head: nn.Module = (
            nn.Linear(width, data.classes)
            if hidden is None
            else nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, data.classes))
        )

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.rnn(self.embedding(tokens))
        answer: Tensor = self.head(states.mean(1))
        return answer


def lstm(data: Dataset) -> nn.Module:
    """An LSTM with a linear head."""
    return _Recurrent(data, nn.LSTM, both_ways=False, hidden=None)


def bilstm(data: Dataset) -> nn.Module:
    """A bidirectional LSTM with a hidden layer before the head."""
    return _Recurrent(data, nn.LSTM, both_ways=True, hidden=64)


def gru(data: Dataset) -> nn.Module:
    """A GRU with a linear head."""
    return _Recurrent(data, nn.GRU, both_ways=False, hidden=None)


def mlp(data: Dataset, width: int = 128) -> nn.Module:
    """Two hidden layers."""
    size = torch.Size(data.input_shape).numel()
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, data.classes),
    )


def bn_mlp(data: Dataset) -> nn.Module:
    """Two hidden layers with batch norm and dropout."""
    size = torch.Size(data.input_shape).numel()
    return nn.Sequential(
        nn.Linear(size, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, data.classes),
    )


class _ResidualMLP(nn.Module):
    def __init__(self, data: Dataset, width: int = 96) -> None:
        super().__init__()
        self.first = nn.Linear(data.input_shape[0], width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.ups = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(2)])
        self.downs = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.head = nn.Linear(width, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        answer: Tensor = self.head(x)
        return answer


def minilm(data: Dataset) -> nn.Module:
    """A pretrained MiniLM, frozen, with LoRA adapters and a head."""
    from tramark.lab.models.pretrained import minilm_lora

    return minilm_lora(data.classes)


def efficientnet(data: Dataset) -> nn.Module:
    """A pretrained EfficientNet-Lite0, frozen, with a head."""
    from tramark.lab.models.pretrained import efficientnet_frozen

    return efficientnet_frozen(data.classes)


def _known(name: str) -> Callable[[Dataset], nn.Module]:
    return lambda data: models.build(
        name, input_shape=data.input_shape, classes=data.classes, vocabulary=data.vocabulary
    )


NETS: dict[str, Callable[[Dataset], nn.Module]] = {
    "cnn": _known("cnn"),
    "small-cnn": _known("small-cnn"),
    "resnet18": _known("resnet18"),
    "bag-of-words": _known("text"),
    "bn-cnn": bn_cnn,
    "bn-cnn-dropout": lambda data: bn_cnn(data, dropout=0.3),
    "bn-cnn-64": lambda data: bn_cnn(data, hidden=64),
    "bn-cnn-bn": bn_cnn_bn,
    "bn-convolutions": bn_convolutions,
    "group-norm-residual": group_norm_residual,
    "convnext": convnext,
    "vit": small_vit,
    "transformer": _Encoder,
    "lstm": lstm,
    "bilstm": bilstm,
    "gru": gru,
    "mlp": mlp,
    "bn-mlp": bn_mlp,
    "residual-mlp": _ResidualMLP,
    "minilm-lora": minilm,
    "efficientnet-frozen": efficientnet,
}


def build(name: str, data: Dataset, *, seed: int) -> nn.Module:
    """The net of a name for a data set, always with the same weights for a seed."""
    if name not in NETS:
        raise SettingError(f"no net named {name!r}; there are {', '.join(NETS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](data)
