"""Sizes and layers that several models reckon with."""

from collections import OrderedDict

from torch import nn

from tramark.errors import SettingError


def pooled(name: str, input_shape: tuple[int, ...], poolings: int) -> tuple[int, int]:
    """Height and width after so many 2×2 poolings; an error where nothing would be left.

    >>> pooled("cnn", (1, 28, 28), poolings=2)
    (7, 7)
    """
    _, height, width = input_shape
    if min(height, width) < 2**poolings:
        raise SettingError(f"{name} needs images of at least {2**poolings}×{2**poolings}, not {height}×{width}")
    return height // 2**poolings, width // 2**poolings


def conv3(inputs: int, outputs: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size of the image, or divides it by the stride."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=bias)


def with_norms(layers: OrderedDict[str, nn.Module]) -> OrderedDict[str, nn.Module]:
    """The layers with a batch norm behind each convolution: norm1 behind conv1, and so on."""
    normed: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in layers.items():
        normed[name] = layer
        if isinstance(layer, nn.Conv2d):
            normed[name.replace("conv", "norm")] = nn.BatchNorm2d(layer.out_channels)
    return normed
