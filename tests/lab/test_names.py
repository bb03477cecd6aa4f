"""The plain names are those of the real things."""

from typing import get_args

from tramark.lab import models, names
from tramark.lab.methods import METHODS
from tramark.marks.presets import PRESETS


def test_the_names_are_those_of_the_packages() -> None:
    assert get_args(names.ModelName) == models.NAMES
    assert get_args(names.MethodName) == tuple(METHODS)
    assert get_args(names.PresetName) == tuple(PRESETS)
