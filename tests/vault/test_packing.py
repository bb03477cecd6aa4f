"""A packed state comes back as it was."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tramark.vault.packing import pack, unpack


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"a": {}},
        {"a": {"b": {}}, "c": [], "round": 3},
        {"a": {}, "fleet": {"base": torch.arange(3.0), "steps": torch.tensor(2)}, "clients": ["x", "y"]},
    ],
    ids=str,
)
def test_a_state_comes_back_with_its_empty_parts(state: dict[str, Any]) -> None:
    found = unpack(pack(state))
    assert found.keys() == state.keys()
    for name, value in state.items():
        if name == "fleet":
            assert found[name].keys() == value.keys()
            assert all(torch.equal(found[name][key], tensor) for key, tensor in value.items())
        else:
            assert found[name] == value


def test_a_state_from_before_empty_parts_were_kept_is_read() -> None:
    plain = torch.tensor(list(json.dumps({"round": 3}).encode()), dtype=torch.uint8)
    found = unpack(save({"plain": plain, "fleet/base": torch.ones(2)}))
    assert found["round"] == 3
    assert torch.equal(found["fleet"]["base"], torch.ones(2))


def test_tensors_among_plain_values_are_refused() -> None:
    with pytest.raises(TypeError):
        pack({"a": {"tensor": torch.ones(2), "number": 1}})
