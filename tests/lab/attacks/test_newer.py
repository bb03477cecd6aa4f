"""The newer thieves: each does what it says, and leaves a model that is worth stealing."""

import copy
import functools
from collections.abc import Callable

import pytest
import torch
from federations import digits
from nets import drawing, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks.base import Loot
from tramark.lab.attacks.clp import CLP
from tramark.lab.attacks.ibau import IBAU
from tramark.lab.attacks.nad import NAD
from tramark.lab.attacks.rnp import RNP, THRESHOLDS
from tramark.lab.attacks.spectrum import End, ReverseEdit
from tramark.lab.attacks.wrk import WRK
from tramark.lab.models import build
from tramark.lab.simulation.client import LocalTraining, accuracy


def loot() -> Loot:
    return Loot(digits(), torch.arange(0, 800, 2))


@functools.cache
def _trained(name: str) -> nn.Module:
    with seeded():
        model = build(name, input_shape=(1, 8, 8), classes=10, seed=0)
    LocalTraining(epochs=8, batch_size=32, lr=0.03)(model, digits(), torch.arange(600, 1497), generator=drawing())
    return model.eval()


def trained(name: str = "mlp") -> nn.Module:
    return copy.deepcopy(_trained(name))


def right(model: nn.Module) -> float:
    return accuracy(model, digits().test_inputs, digits().test_labels, prepare=digits().prepare)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize(
    ("attack", "kept"),
    [
        (WRK(epochs=4, lr=0.01), 0.7),
        (ReverseEdit(rank=8), 0.8),
        (CLP(), 0.7),
        (NAD(epochs=2, tuning_epochs=2), 0.8),
        (IBAU(epochs=1), 0.6),
    ],
)
@pytest.mark.parametrize("net", ["mlp", "cnn-bn"])
def test_weights_change_and_the_task_is_kept(
    attack: WRK | ReverseEdit | CLP | NAD | IBAU, kept: float, net: str
) -> None:
    model = trained(net)
    assert right(model) > 0.85
    result = attack(model, loot())
    # No channel of a net that was trained for a few rounds need stand out.
    assert isinstance(attack, CLP) or not torch.equal(flat(result), flat(model))
    assert right(result) > kept


def test_wrk_moves_samples_in_one_step_and_pushes_weights_away() -> None:
    model, own = trained(), loot()
    inputs, labels = own.prepare(own.inputs[:50]), own.labels[:50]
    moved = WRK(epsilon=0.3).moved(model, inputs, labels, own)
    # Pixels are normalised to [-1, 1], so that the range is 2.
    assert float((moved - inputs).detach().abs().max()) == pytest.approx(0.6, abs=1e-5)
    assert F.cross_entropy(model(moved), labels) > F.cross_entropy(model(inputs), labels) + 1
    near, far = (WRK(epochs=2, push=push)(model, own) for push in (0.0, 1.0))
    assert torch.dot(flat(far), flat(model)) < torch.dot(flat(near), flat(model))


@pytest.mark.parametrize("end", ["top", "bottom"])
def test_singular_directions_at_one_end_are_gone(end: End) -> None:
    model = trained()
    attack = ReverseEdit(rank=5, end=end)
    assert attack.chosen(model) == "fc2"
    before = torch.linalg.svdvals(model.get_parameter("fc2.weight").detach())
    after = torch.linalg.svdvals(attack(model, loot()).get_parameter("fc2.weight").detach())
    wanted = before[5:] if end == "top" else before[:-5]
    torch.testing.assert_close(after[: len(wanted)], wanted, atol=1e-4, rtol=1e-4)
    assert float(after[len(wanted) :].max()) < 1e-4
    with pytest.raises(SettingError, match="no layer 'fc9'"):
        ReverseEdit(layer="fc9")(model, loot())


@pytest.mark.parametrize("net", ["cnn", "cnn-bn"])
def test_clp_silences_channels_that_stand_out_and_no_others(net: str) -> None:
    model = trained(net)
    convolution = model.get_submodule("conv2")
    assert isinstance(convolution, nn.Conv2d)
    with torch.no_grad():
        convolution.weight[7] *= 30
    pruned = CLP()(model, loot())
    silent = (pruned.get_parameter("conv2.weight").flatten(1) == 0).all(1)
    assert silent[7]
    assert int(silent.sum()) <= 3
    if net == "cnn-bn":
        assert float(pruned.get_parameter("norm2.weight")[7].detach()) == 0
    kernel = convolution.weight[3].detach().flatten(1)
    assert float(CLP().bounds(convolution)[3]) == pytest.approx(float(torch.linalg.svdvals(kernel)[0]), rel=1e-4)


def test_ibau_finds_a_perturbation_within_its_bound_and_unlearns_it() -> None:
    model, own = trained(), loot()
    inputs, labels = own.prepare(own.inputs[:200]), own.labels[:200]
    unit = torch.full_like(inputs[:1], 2.0)
    attack = IBAU(epochs=3)
    delta = attack.perturbation(model, inputs, labels, unit)
    assert float(delta.norm()) <= 0.18 * 8 * 2 + 1e-4

    @torch.no_grad()
    def loss(one: nn.Module, by: Tensor) -> float:
        return float(F.cross_entropy(one(inputs + by), labels))

    assert loss(model, delta) > loss(model, torch.zeros(1)) + 0.5
    assert loss(attack(model, own), delta) < loss(model, delta)


def test_nad_draws_the_students_attention_to_the_teachers() -> None:
    model, own = trained("cnn"), loot()
    free, drawn = (NAD(epochs=3, tuning_epochs=1, beta=beta)(model, own) for beta in (0.0, 1e5))
    assert not torch.equal(flat(free), flat(drawn))
    assert not any(module._forward_hooks for module in drawn.modules())


def test_rnp_recovers_in_training_mode_and_sweeps_its_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("cnn-bn")
    attack = RNP(unlearning_epochs=2, recovery_epochs=2, samples=200)
    modes: list[bool] = []

    def watched(net: nn.Module, weights: dict[str, Tensor], given: tuple[Tensor]) -> Tensor:
        modes.append(net.training)
        answer: Tensor = torch.func.functional_call(net, weights, given)
        return answer

    monkeypatch.setattr("tramark.lab.attacks.rnp.functional_call", watched)
    swept = dict(attack.sweep(model, loot()))
    assert modes
    assert all(modes)
    assert tuple(swept) == THRESHOLDS
    assert (THRESHOLDS[0], THRESHOLDS[-1], len(THRESHOLDS)) == (0.0, 0.9, 19)
    masks = attack.masks(model, loot())
    assert set(masks) == {"norm1.weight", "norm2.weight"}
    gone = [sum(int((one.get_parameter(name) == 0).sum()) for name in masks) for one in swept.values()]
    assert gone == sorted(gone)
    assert right(model) > 0.85, "the model itself is as it was"


@pytest.mark.parametrize(
    "make",
    [
        lambda: WRK(epsilon=0),
        lambda: ReverseEdit(rank=0),
        lambda: ReverseEdit(end="middle"),  # type: ignore[arg-type]
        lambda: CLP(deviations=0),
        lambda: NAD(beta=-1),
        lambda: IBAU(bound=0),
    ],
)
def test_parameters_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(SettingError):
        make()
