"""One code path for all devices: nothing is left on the CPU that must be where the model is."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from elsewhere import DEVICE, MismatchError, elsewhere

from tramark.lab.simulation.run import prepare
from tramark.lab.studies.parts import outcome
from tramark.lab.studies.scales import federation
from tramark.lab.studies.study import Bench


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_tensors_elsewhere_hold_values_and_do_not_mix_with_those_here() -> None:
    with elsewhere() as device:
        one = torch.arange(3.0).to(device)
        assert one.device == DEVICE
        assert (2 * one + one).cpu().tolist() == [0, 3, 6]
        with pytest.raises(MismatchError):
            one + torch.ones(3)


@pytest.mark.parametrize(
    "variant",
    ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ours", "released", "waffle"))],
)
def test_a_federation_is_the_same_on_another_device(variant: str) -> None:
    settings = federation("fashion-mnist", "smoke", variant, clients=2, samples_per_client=40)
    expected = prepare(settings)
    for _ in range(3):
        here = expected.step()
    with elsewhere() as device:
        simulation = prepare(settings, device=device)
        for _ in range(3):
            there = simulation.step()
    assert there["ma"] == pytest.approx(here["ma"], abs=0.02)
    assert there.get("vr") == here.get("vr")


@pytest.mark.slow
def test_a_study_runs_on_another_device(tmp_path: Path) -> None:
    settings = federation("fashion-mnist", "smoke", "ours")
    with elsewhere() as device:
        row = outcome(settings, Bench(tmp_path, device=str(device)))
    assert row["vr"] == row["vr_trained"] == 1
