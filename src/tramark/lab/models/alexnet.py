"""AlexNet for small images: five 3×3 convolutions and three pooling steps before the two layers of 4096,
which hold most of its weights."""

from collections import OrderedDict

from torch import nn

from tramark.lab.models.shapes import conv3, pooled, with_norms


def alexnet(input_shape: tuple[int, ...], classes: int, *, norm: bool = False) -> nn.Module:
    """35.9 M weights for 32×32 colour images and ten classes; with `norm`, convolutions are normalised."""
    height, width = pooled("alexnet", input_shape, poolings=3)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=conv3(input_shape[0], 64),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=conv3(64, 192),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=conv3(192, 384),
        relu3=nn.ReLU(),
        conv4=conv3(384, 256),
        relu4=nn.ReLU(),
        conv5=conv3(256, 256),
        relu5=nn.ReLU(),
        pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        dropout1=nn.Dropout(),
        fc1=nn.Linear(256 * height * width, 4096),
        relu6=nn.ReLU(),
        dropout2=nn.Dropout(),
        fc2=nn.Linear(4096, 4096),
        relu7=nn.ReLU(),
        fc3=nn.Linear(4096, classes),
    )
    return nn.Sequential(with_norms(layers) if norm else layers)
