"""What `--model` means: one of the laboratory's models by name, or a function of the user's."""

from collections.abc import Mapping
from typing import Any

from tramark.errors import SettingError
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Tokens
from tramark.lab import models
from tramark.suspects.weights import ModelName


def model_factory(name: str | None, keyring: Keyring, described: Mapping[str, Any]) -> ModelName | None:
    """The name of the function that makes this model, or of the one that `package.module:function` names.

    Parameters
    ----------
    name : by default, the model that the vault describes, if it describes one.
    keyring : says what a model is fed and how many labels it knows, if `described` does not.
    described : the vault's description of the federation's model: `model`, `input_shape` and `classes`.
    """
    name = name or described.get("model")
    if name is None:
        return None
    if ":" in name:
        return ModelName(name)
    if name not in models.NAMES:
        there = ", ".join(models.NAMES)
        raise SettingError(f"no model named {name!r}: give package.module:function, or one of {there}")
    source = keyring.source
    options = {
        "name": name,
        "input_shape": list(described.get("input_shape", source.shape)),
        "classes": described.get("classes", keyring.classes),
        "vocabulary": source.vocabulary if isinstance(source, Tokens) else 0,
    }
    return ModelName("tramark.lab.models:build", options)
