"""Attacks on the weights and by training: each runs on any net, and each does what it says."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from federations import digits
from nets import drawing, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.lab.attacks import ATTACKS
from tramark.lab.attacks.adversarial import AdversarialTraining
from tramark.lab.attacks.base import Attack, Loot
from tramark.lab.attacks.convert import Onnx
from tramark.lab.attacks.distil import Distil, Extract, Knockoff
from tramark.lab.attacks.fineprune import FinePrune
from tramark.lab.attacks.finetune import FineTune, Retrain
from tramark.lab.attacks.noise import WeightNoise, WeightShift
from tramark.lab.attacks.overwrite import Overwrite
from tramark.lab.attacks.permute import PermuteUnits, RescaleUnits
from tramark.lab.attacks.prune import Prune, PruneStructured
from tramark.lab.attacks.quantise import Cast, FewBits, Int8, int8_weights
from tramark.lab.attacks.regularise import Regularise
from tramark.lab.attacks.rnp import RNP
from tramark.lab.attacks.smooth import LabelSmoothing
from tramark.lab.attacks.training import layers, norms_at_rest, output_layer, reset, some
from tramark.lab.data import Dataset
from tramark.lab.models import build
from tramark.lab.models.resnet import Block
from tramark.lab.models.vit import VisionTransformer
from tramark.lab.simulation.client import LocalTraining, accuracy, predict
from tramark.suspects.base import Suspect
from tramark.tracing.trace import trace


def loot() -> Loot:
    return Loot(digits(), torch.arange(0, 600, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def with_norms() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)),
    )


def mlp() -> nn.Module:
    return build("mlp", input_shape=(1, 8, 8), classes=10)


def residual() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), Block(8, 8, 1), Block(8, 12, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)),
    )


def transformer() -> nn.Module:
    return VisionTransformer((1, 8, 8), 10, patch=4, dim=16, depth=2, heads=2, hidden=32)


NETS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp, "norms": with_norms}
OTHERS: dict[str, Callable[[], nn.Module]] = {"residual": residual, "transformer": transformer}


@functools.cache
def _trained(net: str) -> nn.Module:
    with seeded():
        model = (NETS | OTHERS)[net]()
    LocalTraining(epochs=8, batch_size=32, lr=0.03)(model, digits(), torch.arange(600, 1497), generator=drawing())
    return model.eval()


def trained(net: str) -> nn.Module:
    return copy.deepcopy(_trained(net))


def said(suspect: nn.Module | Suspect, raw: Tensor | None = None) -> Tensor:
    """The scores of a suspect for the test's inputs."""
    raw = digits().test_inputs if raw is None else raw
    if isinstance(suspect, nn.Module):
        return predict(suspect, raw, prepare=digits().prepare)
    scores = suspect.ask(raw).scores
    assert scores is not None
    return scores


def right(model: nn.Module) -> float:
    return accuracy(model, digits().test_inputs, digits().test_labels, prepare=digits().prepare)


def agreement(one: nn.Module, other: nn.Module) -> float:
    return float((said(one).argmax(1) == said(other).argmax(1)).float().mean())


def taken(attack: Attack, model: nn.Module) -> nn.Module:
    """What turns up, if it is a module."""
    result = attack(model, loot())
    assert isinstance(result, nn.Module)
    return result


def moved(before: nn.Module, after: nn.Module) -> set[str]:
    """The names of all tensors that differ."""
    later = after.state_dict()
    return {name for name, tensor in before.state_dict().items() if not torch.equal(tensor, later[name])}


# The defaults are the sources', and too slow for a test.
QUICK: dict[str, Any] = {
    "epochs": 1,
    "tuning_epochs": 1,
    "rounds": 1,
    "dummies": 2,
    "questions": 16,
    "pool": 32,
    "steps": 2,
    "samples": 128,
    "unlearning_epochs": 2,
    "recovery_epochs": 2,
}


ELSEWHERE = ("answers", "collusion", "detector", "difference", "informed", "transforms")
TRAINING = [
    name
    for name, make in ATTACKS.items()
    if getattr(make, "func", make).__module__.removeprefix("tramark.lab.attacks.") not in ELSEWHERE
]


def quick(name: str, **options: Any) -> Attack:
    make: Any = ATTACKS[name]
    known = {field.name for field in dataclasses.fields(getattr(make, "func", make))}
    attack: Attack = make(**{k: v for k, v in QUICK.items() if k in known} | options)
    return attack


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", TRAINING)
def test_an_attack_runs_and_repeats_and_leaves_everything_as_it_was(name: str, net: str) -> None:
    if name == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    attack = quick(name)
    model = trained(net).train()
    model[0].eval()  # type: ignore[index]
    before, modes, state = copy.deepcopy(model), [m.training for m in model.modules()], torch.get_rng_state()
    result = attack(model, loot())
    assert not moved(before, model)
    assert [m.training for m in model.modules()] == modes
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    scores = said(result)
    assert scores.shape == (len(digits().test_inputs), 10)
    assert scores.isfinite().all()
    if isinstance(result, nn.Module):
        assert not any(module.training for module in result.modules())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in result.modules())
    if name == "onnx":
        torch.testing.assert_close(scores, said(model), rtol=1e-3, atol=1e-4)
    if hasattr(attack, "seed"):
        assert torch.equal(said(quick(name)(model, loot())), scores)
        assert "seed=0" in repr(attack)


@pytest.mark.parametrize(
    "name",
    ["fine-tune", "retrain", "weight-noise", "weight-shift", "adversarial-training", "distil", "overwrite"],
)
def test_another_seed_gives_another_model(name: str) -> None:
    model = trained("mlp")
    first, other = (quick(name, seed=seed)(model, loot()) for seed in (0, 1))
    assert not torch.equal(said(first), said(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prune(share=1.0),
        lambda: Prune(scope="model"),  # type: ignore[arg-type]
        lambda: PruneStructured(share=-0.1),
        lambda: FineTune(epochs=0),
        lambda: FineTune(lr=0),
        lambda: Retrain(layers="first"),  # type: ignore[arg-type]
        lambda: Cast("int8"),  # type: ignore[arg-type]
        lambda: Int8("mixed"),  # type: ignore[arg-type]
        lambda: FewBits(bits=0),
        lambda: RNP(threshold=1.5),
        lambda: FinePrune(share=1.0),
        lambda: WeightNoise(scale=-1),
        lambda: WeightShift(lam=float("nan")),
        lambda: Regularise(l2=-1),
        lambda: LabelSmoothing(smoothing=1.0),
        lambda: AdversarialTraining(epsilon=0),
        lambda: Overwrite(dummies=0),
        lambda: Overwrite(preset="none"),
        lambda: Distil(temperature=0),
        lambda: Extract(architecture="perceptron"),
        lambda: Knockoff(inputs="music"),  # type: ignore[arg-type]
        lambda: RescaleUnits(spread=1.0),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|say|no model named|use one of"):
        make()


class TestPrune:
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
    def test_a_share_of_each_layer_is_zero_and_the_rest_is_as_it_was(self, share: float) -> None:
        model = trained("norms")
        pruned = taken(Prune(share), model)
        for name, layer in layers(model).items():
            after = pruned.get_parameter(f"{name}.weight")
            gone = after == 0
            assert int(gone.sum()) == round(share * after.numel())
            assert torch.equal(after[~gone], layer.weight[~gone])
            if share:
                assert layer.weight[gone].abs().max() <= layer.weight[~gone].abs().min()
        assert moved(model, pruned) <= {f"{name}.weight" for name in layers(model)}

    def test_global_pruning_ranks_all_layers_together(self) -> None:
        model = trained("cnn")
        pruned = taken(Prune(0.5, "global"), model)
        weights = torch.cat([layer.weight.detach().flatten() for layer in layers(model).values()])
        after = torch.cat([layer.weight.detach().flatten() for layer in layers(pruned).values()])
        assert int((after == 0).sum()) == round(0.5 * len(after))
        assert weights[after == 0].abs().max() <= weights[after != 0].abs().min()
        shares = [float((layer.weight == 0).float().mean()) for layer in layers(pruned).values()]
        assert max(shares) - min(shares) > 0.05

    def test_structured_pruning_silences_the_smallest_channels(self) -> None:
        model = trained("norms")
        pruned = taken(PruneStructured(0.5), model)
        assert isinstance(pruned, nn.Sequential)
        norm = model.get_parameter("4.weight").flatten(1).norm(dim=1)
        channels = pruned[:7](digits().prepare(digits().test_inputs))
        silent = channels.abs().amax((0, 2, 3)) == 0
        assert int(silent.sum()) == 8
        assert norm[silent].max() <= norm[~silent].min()
        last = output_layer(model)
        assert not {f"{last}.weight", f"{last}.bias"} & moved(model, pruned)


class TestTraining:
    def test_fine_tuning_the_last_layer_moves_nothing_else(self) -> None:
        model = trained("norms")
        last = output_layer(model)
        assert moved(model, taken(FineTune(epochs=1, layers="last"), model)) == {f"{last}.weight", f"{last}.bias"}
        everywhere = moved(model, taken(FineTune(epochs=1), model))
        assert everywhere == set(model.state_dict())

    def test_fine_tuning_is_what_a_client_does(self) -> None:
        model = trained("cnn")
        plain = copy.deepcopy(model)
        LocalTraining(epochs=2, lr=1e-3)(plain, digits(), loot().indices, generator=drawing(5))
        assert not moved(plain, taken(FineTune(epochs=2, seed=5), model))

    def test_retraining_starts_the_last_layer_anew(self) -> None:
        model = trained("norms")
        last = output_layer(model)
        fresh = taken(Retrain(epochs=1, lr=1e-9), model)
        assert moved(model, fresh) == {f"{last}.weight", f"{last}.bias"}
        assert right(fresh) < 0.4
        assert right(taken(Retrain(epochs=10, lr=0.05), model)) > 0.85
        assert "0.weight" in moved(model, taken(Retrain(epochs=1, layers="all"), model))

    def test_a_reset_module_knows_nothing(self) -> None:
        for net in ("norms", "transformer"):
            model = trained(net)
            before = copy.deepcopy(model)
            reset(model, drawing())
            weights = {name for name, _ in model.named_parameters() if name.endswith("weight") or "." not in name}
            norms = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)}
            assert weights <= moved(before, model)
            assert all(bool((model.get_parameter(name) == 1).all()) for name in norms)
            assert right(model) < 0.4

    def test_norms_rest_only_within_the_block(self) -> None:
        model = trained("norms").train()
        before = copy.deepcopy(model)
        with norms_at_rest(model):
            said_resting = model(digits().prepare(digits().test_inputs))
        assert said_resting.shape == (300, 10)
        assert not moved(before, model)
        model.train()(digits().prepare(digits().test_inputs))
        assert "1.running_mean" in moved(before, model)

    def test_regularisation_shrinks_what_plain_tuning_does_not(self) -> None:
        model = trained("mlp")

        def size(net: nn.Module) -> float:
            return float(torch.cat([weight.detach().flatten() for weight in net.parameters()]).norm())

        shrunk = taken(Regularise(l2=0.1, epochs=5, tuning_epochs=0), model)
        assert size(shrunk) < 0.9 * size(taken(Regularise(l2=0.0, epochs=5, tuning_epochs=0), model))
        tuned = taken(Regularise(l2=0.1, epochs=5, tuning_epochs=2), model)
        assert moved(shrunk, tuned)

    def test_smoothing_takes_confidence_away(self) -> None:
        model = trained("cnn")

        def confidence(net: nn.Module) -> float:
            return float(said(net).softmax(1).amax(1).mean())

        smooth = taken(LabelSmoothing(smoothing=0.3, epochs=5, lr=0.01), model)
        assert confidence(smooth) < confidence(taken(LabelSmoothing(smoothing=0.0, epochs=5, lr=0.01), model)) - 0.1
        assert right(smooth) > 0.7


class TestAdversarial:
    def test_inputs_move_by_no_more_than_epsilon_to_where_the_model_fails(self) -> None:
        model = trained("norms").train()
        modes = [m.training for m in model.modules()]
        raw, labels = digits().test_inputs, digits().test_labels
        inputs = digits().prepare(raw)
        attack = AdversarialTraining(epsilon=0.1)
        found = attack.perturbed(model, inputs, labels, loot(), drawing())
        black, white = (digits().prepare(torch.full_like(raw[:1], value)).mean() for value in (0, 255))
        assert float((found - inputs).abs().max()) == pytest.approx(0.1 * float(white - black), rel=1e-4)
        assert black <= found.min() <= found.max() <= white
        assert [m.training for m in model.modules()] == modes
        model.eval()
        assert F.cross_entropy(model(found), labels) > 2 * F.cross_entropy(model(inputs), labels)

    def test_training_makes_the_model_harder_to_fool(self) -> None:
        model = trained("mlp")
        attack = AdversarialTraining(epsilon=0.1, epochs=5, lr=0.02)
        hardened, tuned = taken(attack, model), taken(FineTune(epochs=5, lr=0.02), model)

        def under_attack(net: nn.Module) -> float:
            inputs, labels = digits().prepare(digits().test_inputs), digits().test_labels
            found = attack.perturbed(net, inputs, labels, loot(), drawing())
            return float((net(found).argmax(1) == labels).float().mean())

        assert under_attack(hardened) > under_attack(tuned) + 0.1

    def test_words_are_refused(self) -> None:
        tokens, labels = torch.randint(20, (8, 5), generator=drawing()), torch.arange(8) % 2
        text = Dataset("text", tokens, labels, tokens, labels, 2, kind="text", vocabulary=20)
        model = build("text", input_shape=(5,), classes=2, vocabulary=20, seed=0)
        with pytest.raises(ValueError, match="images and tables"):
            AdversarialTraining()(model, Loot(text, torch.arange(8)))


class TestQuantise:
    @pytest.mark.parametrize(("name", "dtype"), [("float16", torch.float16), ("bfloat16", torch.bfloat16)])
    def test_a_cast_model_has_the_rounded_weights(self, name: Any, dtype: torch.dtype) -> None:
        model = trained("norms")
        cast = taken(Cast(name), model)
        half = copy.deepcopy(model).to(dtype)
        for key, tensor in cast.state_dict().items():
            assert torch.equal(tensor, half.state_dict()[key].to(tensor.dtype))
        assert moved(model, cast)
        assert agreement(model, cast) > 0.97

    def test_what_half_precision_cannot_hold_is_said(self) -> None:
        model = trained("mlp")
        with torch.no_grad():
            model.get_parameter("fc1.bias")[0] = 1e6
        with pytest.raises(ValueError, match=r"fc1\.bias.*bfloat16"):
            Cast("float16")(model, loot())
        assert Cast("bfloat16")(model, loot())

    @pytest.mark.parametrize("net", [*NETS, *OTHERS])
    @pytest.mark.parametrize("kind", ["static", "dynamic"])
    def test_int8_weights_are_int8_and_answers_nearly_the_same(self, net: str, kind: Any) -> None:
        model = trained(net)
        quantised = taken(Int8(kind), model)
        found = int8_weights(quantised)
        wanted = {n for n, layer in layers(model).items() if kind == "static" or isinstance(layer, nn.Linear)}
        assert set(found) == wanted
        for name, weight in found.items():
            assert weight.int_repr().dtype == torch.int8
            assert weight.shape == model.get_parameter(f"{name}.weight").shape
        assert agreement(model, quantised) > 0.9
        assert not torch.equal(said(model), said(quantised))

    def test_a_net_that_int8_cannot_treat_is_told_so(self) -> None:
        class Curious(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(64, 10)

            def forward(self, x: Tensor) -> Tensor:
                scores: Tensor = self.fc(x.flatten(1))
                return scores if scores.sum() > 0 else 2 * scores

        with pytest.raises(ValueError, match=r"cannot quantise Curious.*dynamic"):
            Int8("static")(Curious(), loot())
        assert int8_weights(taken(Int8("dynamic"), Curious()))
        convolutions = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
        with pytest.raises(ValueError, match="no layer that dynamic"):
            Int8("dynamic")(convolutions, loot())
        assert int8_weights(taken(Int8("static"), convolutions))

    @pytest.mark.parametrize("epochs", [0, 1])
    def test_few_bits_are_few_values(self, epochs: int) -> None:
        model = trained("cnn")
        rounded = taken(FewBits(bits=4, epochs=epochs), model)
        for layer in layers(rounded).values():
            values = layer.weight.unique()
            assert 4 < len(values) <= 16
        step = (model.get_parameter("0.weight").max() - model.get_parameter("0.weight").min()) / 15
        if not epochs:
            change = rounded.get_parameter("0.weight") - model.get_parameter("0.weight")
            assert change.abs().max() <= 0.501 * step
        assert ("0.bias" in moved(model, rounded)) == bool(epochs)


class TestRNP:
    @pytest.mark.parametrize("net", [*NETS, "transformer"])
    def test_unlearning_forgets_the_task(self, net: str) -> None:
        model = trained(net)
        assert right(model) > 0.75
        assert right(RNP()._unlearn(model, loot(), drawing())) < 0.3

    def test_masks_lie_where_the_source_lays_them(self) -> None:
        attack = RNP(samples=128, unlearning_epochs=1, recovery_epochs=1)
        norms = attack.masks(trained("norms"), loot())
        assert {name: len(mask) for name, mask in norms.items()} == {"1.weight": 8, "5.weight": 16, "10.weight": 32}
        rows = dataclasses.replace(attack, masked="rows").masks(trained("norms"), loot())
        assert {name: len(mask) for name, mask in rows.items()} == {"0.weight": 8, "4.weight": 16, "9.weight": 32}
        assert set(attack.masks(trained("cnn"), loot())) == {"0.weight", "3.weight", "7.weight"}
        block = {"norm1.weight": 16, "attention.out.weight": 2, "norm2.weight": 16, "fc1.weight": 32}
        wanted = {f"blocks.{i}.{name}": count for i in range(2) for name, count in block.items()} | {"norm.weight": 16}
        found = attack.masks(trained("transformer"), loot())
        assert {name: len(mask) for name, mask in found.items()} == wanted
        with pytest.raises(ValueError, match="no batch norm"):
            RNP(masked="norm").masks(trained("cnn"), loot())

    def test_recovery_learns_masks_between_nothing_and_all(self) -> None:
        attack = RNP(samples=200)
        for net in ("cnn", "norms"):
            mask = torch.cat(list(attack.masks(trained(net), loot()).values()))
            assert 0 <= mask.min() < mask.max() <= 1
            assert len(mask.unique()) > 10
            other = torch.cat(list(dataclasses.replace(attack, seed=1).masks(trained(net), loot()).values()))
            assert not torch.equal(mask, other)

    def test_the_masks_recover_the_task(self) -> None:
        model, attack = trained("cnn"), RNP(samples=200)
        random = drawing()
        forgetful = attack._unlearn(model, some(loot(), attack.samples, random), random)
        masks = attack.masks(model, loot())
        clean, labels = loot().prepare(loot().inputs), loot().labels
        masked = copy.deepcopy(forgetful)
        with torch.no_grad():
            for name, mask in masks.items():
                weight = masked.get_parameter(name)
                weight.mul_(mask.view(-1, *[1] * (weight.dim() - 1)))
        assert F.cross_entropy(masked(clean), labels) < F.cross_entropy(forgetful(clean), labels)

    def test_pruning_zeroes_the_original_where_masks_are_low(self) -> None:
        model = trained("cnn")
        masks = {"0.weight": torch.linspace(0, 0.7, 8)}
        pruned = RNP(threshold=0.3).prune(model, masks)
        weight = model.get_parameter("0.weight")
        assert torch.equal(pruned.get_parameter("0.weight")[4:], weight[4:])
        assert not pruned.get_parameter("0.weight")[:4].any()
        assert moved(model, pruned) == {"0.weight"}

    def test_a_head_is_pruned_as_one(self) -> None:
        model = trained("transformer")
        pruned = RNP(threshold=0.5).prune(model, {"blocks.0.attention.out.weight": torch.tensor([0.0, 1.0])})
        weight = pruned.get_parameter("blocks.0.attention.out.weight")
        assert not weight[:, :8].any()
        assert torch.equal(weight[:, 8:], model.get_parameter("blocks.0.attention.out.weight")[:, 8:])


class TestFinePrune:
    @pytest.mark.parametrize(("net", "layer", "channels"), [("norms", "4", 16), ("cnn", "3", 16), ("mlp", "fc2", 128)])
    def test_the_idlest_channels_are_cut_and_stay_so(self, net: str, layer: str, channels: int) -> None:
        model = trained(net)
        cut, tuned = taken(FinePrune(share=0.75, epochs=0), model), taken(FinePrune(share=0.75, epochs=3), model)
        silent = [~net.get_parameter(f"{layer}.weight").flatten(1).any(1) for net in (cut, tuned)]
        assert int(silent[0].sum()) == round(0.75 * channels)
        assert torch.equal(silent[0], silent[1])
        assert not tuned.get_parameter(f"{layer}.bias")[silent[1]].any()
        assert right(tuned) > right(cut)

    def test_what_is_cut_is_what_clean_data_leaves_idle(self) -> None:
        model = trained("norms")
        cut = taken(FinePrune(share=0.5, epochs=0), model)
        assert isinstance(model, nn.Sequential)
        activity = model[:7](digits().prepare(loot().inputs)).mean((0, 2, 3))
        silent = cut.get_parameter("5.weight") == 0
        assert activity[silent].max() <= activity[~silent].min()

    def test_a_layer_may_be_named(self) -> None:
        model = trained("cnn")
        cut = taken(FinePrune(share=0.5, layer="0", epochs=0), model)
        assert moved(model, cut) == {"0.weight", "0.bias"}
        with pytest.raises(ValueError, match="no layer 'conv9'"):
            FinePrune(layer="conv9")(model, loot())


class TestNoise:
    def test_noise_is_relative_to_each_tensor(self) -> None:
        model = trained("mlp")
        noisy = taken(WeightNoise(scale=0.2), model)
        for name, weight in model.named_parameters():
            if weight.numel() > 1000:
                change = (noisy.get_parameter(name) - weight).detach()
                assert float(change.std() / weight.detach().std()) == pytest.approx(0.2, rel=0.1)
        assert not moved(model, taken(WeightNoise(scale=0.0), model))

    def test_a_shift_takes_off_the_mean(self) -> None:
        model = trained("cnn")
        shifted = taken(WeightShift(lam=1.5, epochs=0, noise=0.0), model)
        for name, layer in layers(model).items():
            wanted = layer.weight - 1.5 * layer.weight.mean()
            torch.testing.assert_close(shifted.get_parameter(f"{name}.weight"), wanted)
        noisy = taken(WeightShift(lam=0.0, epochs=0), model)
        weight = model.get_parameter("7.weight").detach()
        change = noisy.get_parameter("7.weight").detach() - weight
        assert float(change.std() / weight.std()) == pytest.approx(1.0, rel=0.1)
        assert right(noisy) < 0.8
        assert right(taken(WeightShift(lam=0.0, epochs=10), model)) > right(noisy)


class TestOverwrite:
    def test_the_thief_s_own_key_traces_what_turns_up(self) -> None:
        model = trained("mlp")
        attack = Overwrite(dummies=2, rounds=1, epochs=1, pool=64)
        server, overwritten = attack.federation(model, loot()), taken(attack, model)
        assert trace(overwritten, server.keyring).clients == ("dummy-0",)
        assert trace(model, server.keyring).clients == ()
        assert right(overwritten) > right(model) - 0.15

    def test_the_paper_s_way(self) -> None:
        model = trained("mlp")
        attack = Overwrite(dummies=2, rounds=1, epochs=1, preset="paper", questions=16, pool=16)
        server = attack.federation(model, loot())
        assert server.marked
        region = server.fleet.region
        assert region is not None
        assert region.size == int(0.01 * sum(weight.numel() for weight in model.parameters()))
        assert moved(model, taken(attack, model))


class TestDistil:
    @pytest.mark.parametrize("net", NETS)
    def test_a_student_learns_from_scores(self, net: str) -> None:
        teacher = trained(net)
        student = taken(Distil(epochs=12), teacher)
        assert agreement(student, teacher) > 0.6
        assert not set(teacher.state_dict()) - moved(teacher, student)

    def test_into_another_architecture(self) -> None:
        teacher = trained("cnn")
        student = taken(Distil(epochs=6, architecture="mlp"), teacher)
        assert next(name for name, _ in student.named_parameters()) == "fc1.weight"
        assert agreement(student, teacher) > 0.7

    def test_extraction_learns_labels_even_wrong_ones(self) -> None:
        teacher = trained("mlp")
        with torch.no_grad():
            for name in ("weight", "bias"):
                last = teacher.get_parameter(f"fc3.{name}")
                last.copy_(last.roll(1, 0))
        assert right(teacher) < 0.1
        assert agreement(taken(Extract(epochs=10), teacher), teacher) > 0.7

    @pytest.mark.parametrize(("inputs", "least"), [("noise", 0.15), ("synthetic", 0.3)])
    def test_a_knockoff_learns_without_the_task_s_inputs(self, inputs: Any, least: float) -> None:
        teacher = trained("mlp")
        student = taken(Knockoff(epochs=10, inputs=inputs, samples=1000), teacher)
        assert agreement(student, teacher) > least

    def test_a_head_with_more_labels_than_the_task_is_matched(self) -> None:
        teacher = build("mlp", input_shape=(1, 8, 8), classes=13, seed=0)
        for attack in (Distil(epochs=1, architecture="mlp"), Extract(epochs=1, architecture="mlp")):
            assert said(taken(attack, teacher)).shape == (300, 13)


class TestSymmetries:
    @pytest.mark.parametrize(
        ("attack", "net"),
        [(PermuteUnits(), net) for net in (*NETS, *OTHERS)] + [(RescaleUnits(), net) for net in (*NETS, "residual")],
    )
    def test_other_weights_and_the_same_function(self, attack: Attack, net: str) -> None:
        model = trained(net)
        other = taken(attack, model)
        torch.testing.assert_close(said(other), said(model), rtol=1e-4, atol=1e-4)
        changed = moved(model, other)
        if net in NETS:
            assert {f"{name}.weight" for name in list(layers(model))[1:]} <= changed
        assert len(changed) >= 2

    def test_every_unit_that_may_move_does(self) -> None:
        model, other = trained("mlp"), taken(PermuteUnits(), trained("mlp"))
        rows, later = model.get_parameter("fc1.weight"), other.get_parameter("fc1.weight")
        assert torch.equal(rows.sort(dim=0).values, later.sort(dim=0).values)
        assert float((rows != later).any(1).float().mean()) > 0.9

    def test_factors_lie_within_the_spread(self) -> None:
        model, other = trained("mlp"), taken(RescaleUnits(spread=2.0), trained("mlp"))
        factors = (other.get_parameter("fc1.weight") / model.get_parameter("fc1.weight")).mean(1)
        assert 0.5 <= factors.min() < 0.6
        assert 1.8 < factors.max() <= 2.001

    def test_channels_that_somebody_else_sees_stay(self) -> None:
        changed = moved(trained("residual"), taken(PermuteUnits(), trained("residual")))
        # The stem and the ends of the blocks meet in sums; what lies within a block does not.
        assert {name for name in changed if name.endswith("conv1.weight")} == {"2.conv1.weight", "3.conv1.weight"}
        assert not {"0.weight", "6.weight"} & changed

    def test_shared_layers_stay(self) -> None:
        hidden = nn.Linear(16, 16)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), hidden, nn.ReLU(), hidden, nn.Linear(16, 10))
        with pytest.raises(ValueError, match="no hidden units"):
            PermuteUnits()(model, loot())

    def test_grouped_convolutions_stay(self) -> None:
        grouped = nn.Conv2d(8, 8, 3, groups=2)
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), grouped, nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
        with pytest.raises(ValueError, match="no hidden units"):
            PermuteUnits()(model, loot())

    def test_nets_without_chains_are_told_so(self) -> None:
        with pytest.raises(ValueError, match="no hidden units that can be shown"):
            PermuteUnits()(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), loot())
        with pytest.raises(ValueError, match="can be scaled"):
            RescaleUnits()(trained("transformer"), loot())


class TestOnnx:
    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        absent = "tramark.lab.models.export.find_spec"
        monkeypatch.setattr(absent, lambda name: None if name == "onnxscript" else object())
        with pytest.raises(SettingError, match=r"needs onnxscript: pip install 'tramark\[onnx\]'"):
            Onnx()(trained("mlp"), loot())
