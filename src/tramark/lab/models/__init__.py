"""The models that the studies train, each built by name for an input shape and a number of classes. They are
plain modules without in-place operations or control flow that looks at the data, so that `torch.fx` can trace
them and hooks see what the layers saw."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from tramark.errors import SettingError
from tramark.lab.models.alexnet import alexnet
from tramark.lab.models.cnn import cnn, small_cnn
from tramark.lab.models.mlp import mlp
from tramark.lab.models.resnet import resnet18
from tramark.lab.models.text import text
from tramark.lab.models.vgg import vgg16
from tramark.lab.models.vit import vit, vit_b16

Shape = tuple[int, ...]

IMAGE: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn": cnn,
    "small-cnn": small_cnn,
    "cnn-bn": partial(cnn, norm=True),
    "alexnet": alexnet,
    "alexnet-bn": partial(alexnet, norm=True),
    "vgg16": vgg16,
    "vgg16-bn": partial(vgg16, norm=True),
    "resnet18": resnet18,
    "vit": vit,
    "vit-b16": vit_b16,
}
NAMES: tuple[str, ...] = (*IMAGE, "mlp", "text")


def build(
    name: str, *, input_shape: tuple[int, ...], classes: int, vocabulary: int = 0, seed: int | None = None
) -> nn.Module:
    """The model of this name; with a seed, always with the same weights, and torch's own generator untouched.

    >>> model = build("cnn", input_shape=(1, 28, 28), classes=10, seed=0)
    >>> sum(weight.numel() for weight in model.parameters())
    1663370
    """
    if name not in NAMES:
        raise SettingError(f"no model named {name!r}; there are {', '.join(NAMES)}")
    if classes < 2:
        raise SettingError(f"{name}: classes is {classes}; a classifier needs at least 2")
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(name, input_shape=input_shape, classes=classes, vocabulary=vocabulary)
    if name == "mlp":
        return mlp(input_shape, classes)
    if name == "text":
        return text(vocabulary, classes)
    if len(input_shape) != 3:
        raise SettingError(f"{name} takes images, of shape (channels, height, width), not {input_shape}")
    return IMAGE[name](input_shape, classes)
