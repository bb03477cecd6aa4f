"""ResNet-18, with batch normalisation; small images get a 3×3 stem that keeps their size."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from tramark.lab.models.shapes import conv3

# Images up to this size keep their resolution in the stem.
SMALL = 64


class Block(nn.Module):
    """Two 3×3 convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3(inputs, outputs, stride=stride, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3(outputs, outputs, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """11.2 M weights for ten classes."""
    channels, height, width = input_shape
    layers: OrderedDict[str, nn.Module]
    if max(height, width) <= SMALL:
        layers = OrderedDict(conv=conv3(channels, 64, bias=False), norm=nn.BatchNorm2d(64), relu=nn.ReLU())
    else:
        layers = OrderedDict(
            conv=nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False),
            norm=nn.BatchNorm2d(64),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
        )
    before = 64
    for stage, after in enumerate((64, 128, 256, 512), start=1):
        stride = 1 if stage == 1 else 2
        layers[f"stage{stage}"] = nn.Sequential(Block(before, after, stride), Block(after, after, 1))
        before = after
    layers |= OrderedDict(mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(before, classes))
    return nn.Sequential(layers)
