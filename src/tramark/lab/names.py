"""The names of models, methods, presets and scales as plain words, so that help texts need no torch.

The packages that hold the real things are checked against these names by a test.
"""

from typing import Literal

ModelName = Literal[
    "cnn",
    "small-cnn",
    "cnn-bn",
    "alexnet",
    "alexnet-bn",
    "vgg16",
    "vgg16-bn",
    "resnet18",
    "vit",
    "vit-b16",
    "mlp",
    "text",
]
MethodName = Literal[
    "fedavg", "tramark", "waffle", "fedtracker", "fedipr", "robwe", "fedcrmw", "blackcatt", "mfl-owner"
]
PresetName = Literal["default", "paper", "released"]
SplitName = Literal["iid", "dirichlet", "iid-stratified", "dirichlet-capped"]
TriggerKind = Literal["auto", "patterns", "waffle", "mnist", "svhn"]
ScaleName = Literal["smoke", "laptop", "paper"]
