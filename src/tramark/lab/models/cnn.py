"""Two small convolutional nets: the paper's for Fashion-MNIST, nearly all of whose weights sit in fc1, and
one of 3×3 convolutions for colour images on a small budget."""

from collections import OrderedDict

from torch import nn

from tramark.lab.models.shapes import conv3, pooled, with_norms


def cnn(input_shape: tuple[int, ...], classes: int, *, norm: bool = False) -> nn.Module:
    """The paper's CNN: 5×5 convolutions of 32 and 64, then 512; 1.66 M weights for 28×28 grey images.

    With `norm`, the convolutions are normalised.
    """
    height, width = pooled("cnn", input_shape, poolings=2)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(input_shape[0], 32, kernel_size=5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, kernel_size=5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * height * width, 512),
        relu3=nn.ReLU(),
        fc2=nn.Linear(512, classes),
    )
    return nn.Sequential(with_norms(layers) if norm else layers)


def small_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three 3×3 convolutions of 32, 64 and 128, then 256; 620 k weights for 32×32 colour images."""
    height, width = pooled("small-cnn", input_shape, poolings=3)
    return nn.Sequential(
        OrderedDict(
            conv1=conv3(input_shape[0], 32),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=conv3(32, 64),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            conv3=conv3(64, 128),
            relu3=nn.ReLU(),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(128 * height * width, 256),
            relu4=nn.ReLU(),
            fc2=nn.Linear(256, classes),
        )
    )
