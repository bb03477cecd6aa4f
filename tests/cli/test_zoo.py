"""What `--model` may say, and what it makes."""

from typing import Any

import pytest
import torch
from torch import nn

from tramark.cli.zoo import model_factory
from tramark.errors import SettingError
from tramark.keys.keyring import Keyring
from tramark.keys.sources import Tokens

IMAGES = Keyring.generate(clients=["a", "b"], classes=7, input_shape=(1, 12, 12), questions=4)


def made(name: str | None, described: dict[str, Any], keyring: Keyring = IMAGES) -> nn.Module:
    factory = model_factory(name, keyring, described)
    assert factory is not None
    return factory.build()


def test_a_name_is_built_for_what_the_vault_describes() -> None:
    described = {"model": "mlp", "input_shape": [1, 8, 8], "classes": 5}
    assert made(None, described)(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    assert made("small-cnn", described)(torch.zeros(2, 1, 8, 8)).shape == (2, 5)


def test_without_a_description_the_keyring_says_what_is_fed() -> None:
    assert made("mlp", {})(torch.zeros(2, 1, 12, 12)).shape == (2, 7)
    assert model_factory(None, IMAGES, {}) is None


def test_text_models_get_their_vocabulary() -> None:
    keyring = Keyring.generate(clients=["a", "b"], classes=3, source=Tokens(6, 50), questions=4)
    assert made("text", {}, keyring)(torch.full((2, 6), 49)).shape == (2, 3)


def test_a_function_of_the_users() -> None:
    assert isinstance(made("torch.nn:Identity", {"model": "mlp"}), nn.Identity)


@pytest.mark.parametrize("name", ["nonsense", "no_such_module:f"])
def test_what_cannot_be_meant(name: str) -> None:
    with pytest.raises(SettingError, match=name):
        made(name, {})
