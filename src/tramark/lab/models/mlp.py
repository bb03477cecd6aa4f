"""A net of two hidden layers for tables; it takes inputs of any shape."""

import math
from collections import OrderedDict

from torch import nn


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two hidden layers of 128."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            fc1=nn.Linear(math.prod(input_shape), 128),
            relu1=nn.ReLU(),
            fc2=nn.Linear(128, 128),
            relu2=nn.ReLU(),
            fc3=nn.Linear(128, classes),
        )
    )
