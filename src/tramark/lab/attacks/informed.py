"""The thief who knows the method, but not the key.

He knows that marks are written where clients' data is not: in directions that the inputs of one layer, the last hidden
linear one or else the last convolution, hardly take, or in weights that training hardly moves. So he takes away what
his own data has no use for.

`ProjectInputs`: with U the principal directions that hold a share of the energy of the layer's inputs on his data,
W ← W U Uᵀ; and, since marks also keep to outputs at which the data hardly pulls, only there, if he likes.
`RetrainLayer` starts that layer anew. `QuietWeights` looks for single weights that his data's gradients do not touch,
or that are too large for what they do. `AntiPatterns` trains the model to have no opinion on odd inputs of his own
making. `GuessQuestions` makes questions as the server does, from another secret and his own data, and takes off what
the layer answers to them. `PruneAndTune` zeroes the smallest weights, which is where the paper puts marks, and trains
the others.
"""

import copy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.layout import Layout
from tramark.fleet.moments import DenseMoment, Moment
from tramark.keys.pictures import Patterns, WafflePatterns
from tramark.keys.sources import Source, Tokens, Vectors
from tramark.lab.attacks.base import Loot, copied, generator
from tramark.lab.attacks.difference import (
    check_energy,
    check_treatment,
    foremost,
    leading,
    principal_inputs,
    second_moment,
    spoil,
    tune,
)
from tramark.lab.attacks.training import norms_at_rest
from tramark.lab.data import Dataset
from tramark.marks.directions import fewer_positions
from tramark.marks.layers import editable_layers, linear_layers, rows_answered
from tramark.marks.retouch import retouch
from tramark.marks.split import split


@dataclass(frozen=True)
class ProjectInputs:
    """Leave a layer only the input directions that the thief's own data takes.

    Parameters
    ----------
    energy : the share of the inputs' energy that the directions kept must hold: 0.99, 0.999 or 0.9999.
    outputs : the share of the energy of the gradients at the layer's outputs, on his data, whose directions are left
        alone: what is taken off must lie outside the data in both ways, so that `energy` can be less for the same loss.
    layer : which linear layer or convolution; by default the one that marks are written into.
    every : all linear layers instead, one after another.
    """

    energy: float = 0.999
    layer: str | None = None
    every: bool = False
    outputs: float = 0.0

    def __post_init__(self) -> None:
        check_energy(self.energy)
        if self.outputs:
            check_energy(self.outputs)
        if self.every and self.layer is not None:
            raise SettingError(f"either every layer or {self.layer!r}: not both")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model = copied(model)
        known = linear_layers(model)
        # In the order in which they run, so that each is projected for the inputs that it will see.
        names = [n for n, _ in model.named_modules() if n in known] if self.every else [_layer(model, self.layer)]
        for name in names:
            weight = _matrix(model, name)
            kept = principal_inputs(model, name, loot, self.energy)
            old = weight.cpu().double()
            taken = old - old @ kept @ kept.T
            if self.outputs:
                spared = leading(_gradient_moment(model, name, loot), self.outputs)
                taken -= spared @ (spared.T @ taken)
            weight.copy_(old - taken)
        return model


@dataclass(frozen=True)
class RetrainLayer:
    """Start a layer anew and train it on the thief's data: alone, or with the whole net."""

    epochs: int = 10
    lr: float = 0.01
    layer: str | None = None
    whole: bool = False
    seed: int = 0

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model = copied(model)
        name = _layer(model, self.layer)
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear | nn.Embedding | nn.Conv2d)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            fresh = copy.deepcopy(layer).cpu()
            fresh.reset_parameters()
        layer.load_state_dict(fresh.state_dict())
        places = None
        if not self.whole:
            layout = Layout.of(model)
            places = torch.zeros(layout.size, dtype=torch.bool)
            for own in fresh.state_dict():
                slot = layout.slots[f"{name}.{own}"]
                places[slot.start : slot.stop] = True
        return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed, places=places)


@dataclass(frozen=True)
class QuietWeights:
    """Find the weights that the thief's data has no use for, or that are too large for it, and spoil them.

    Parameters
    ----------
    share : of all weights.
    action : "zero", "redraw" or "finetune": train those weights, and nothing else.
    criterion : "quiet" for the smallest mean |gradient| on the thief's data, "large" for the largest |w| beside the
        root mean square of their tensor, "ratio" for the largest of the latter over the former (beside its mean).
    inside : epochs of training for "finetune".
    epochs : epochs of training of the whole model afterwards.
    """

    share: float = 0.01
    action: Literal["zero", "redraw", "finetune"] = "zero"
    criterion: Literal["quiet", "large", "ratio"] = "quiet"
    inside: int = 5
    epochs: int = 0
    lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_treatment(self.action, self.share, ("zero", "redraw", "finetune"))
        if self.criterion not in ("quiet", "large", "ratio"):
            raise SettingError(f"unknown criterion {self.criterion!r}: use quiet, large or ratio")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model = copied(model)
        layout = Layout.of(model)
        flat = layout.flatten(model.state_dict())
        places = foremost(self._scores(model, layout, flat, loot), self.share)
        if self.action == "finetune":
            tune(model, loot, epochs=self.inside, lr=self.lr, seed=self.seed, places=places)
        else:
            spoil(flat, layout, places, self.action, seed=self.seed)
            model.load_state_dict(model.state_dict() | {n: slot.of(flat) for n, slot in layout.slots.items()})
        return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed)

    def _scores(self, model: nn.Module, layout: Layout, flat: Tensor, loot: Loot) -> Tensor:
        large = torch.cat([slot.of(flat).abs().flatten() / _rms(slot.of(flat)) for slot in layout.tensors.values()])
        if self.criterion == "large":
            return large
        moved = _mean_gradient(model, layout, loot)
        # What is never moved at all would be infinitely odd, however small.
        return -moved if self.criterion == "quiet" else large / (moved / moved.mean() + 0.02)


@dataclass(frozen=True)
class AntiPatterns:
    """Train the model to say nothing in particular about odd inputs, and his own data's labels about his own data.

    Parameters
    ----------
    target : "uniform" answers to every pattern, or a "random" label for each.
    patterns : how many patterns of his own making, of all the kinds that he can think of.
    weight : how much they count beside the data.
    """

    epochs: int = 10
    target: Literal["uniform", "random"] = "uniform"
    patterns: int = 512
    weight: float = 1.0
    lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target not in ("uniform", "random"):
            raise SettingError(f"unknown target {self.target!r}: use uniform or random")
        if self.patterns < 1:
            raise SettingError(f"{self.patterns} patterns: there must be at least one")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model, source = copied(model), generator(self.seed)
        device = next(model.parameters()).device
        inputs = loot.prepare(odd_inputs(loot.dataset, self.patterns, self.seed)).to(device)
        labels = torch.randint(loot.classes, (self.patterns,), generator=source).to(device)

        def indifference(model: nn.Module) -> Tensor:
            some = torch.randint(self.patterns, (64,), generator=source).to(device)
            scores = model(inputs[some])
            if self.target == "random":
                return self.weight * F.cross_entropy(scores, labels[some])
            return -self.weight * F.log_softmax(scores, dim=1).mean()

        with norms_at_rest(model):
            return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed, extra=indifference)


@dataclass(frozen=True)
class GuessQuestions:
    """Make questions of his own as the server makes them, and make the layer deaf to them.

    Of all changes to the layer that leave it no answer to them, the one that his own data feels least is taken. Only
    pictures can be made so; of other inputs, he draws at random.

    Parameters
    ----------
    guesses : how many questions.
    near, retouch : as in `tramark.ClosedForm`.
    layer : which linear layer or convolution; by default the one that marks are written into.
    """

    guesses: int = 256
    near: float = 0.1
    retouch: int = 60
    layer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_energy(self.near)
        if self.guesses < 1:
            raise SettingError(f"{self.guesses} guesses: there must be at least one")

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model = copied(model)
        name, device = _layer(model, self.layer), next(model.parameters()).device
        weight = _matrix(model, name)
        second = second_moment(model, name, loot)
        moment = DenseMoment((second * len(second) / second.trace()).float().to(device))
        ridge = moment.ridge(self.near)
        raw = self._questions(model, name, moment, ridge, loot)
        fed = split(model, name, loot.prepare(raw).to(device)).layer_inputs
        columns = fewer_positions(fed, 1).flatten(1).T.float()
        solved = moment.solve(columns, ridge)
        gram = columns.T @ solved
        gram.diagonal().add_(1e-4 * gram.diagonal().mean())
        matrix = weight.float()
        weight.copy_(matrix - torch.linalg.solve(gram, (matrix @ columns).T).T @ solved.T)
        return model

    def _questions(self, model: nn.Module, layer: str, moment: Moment, ridge: float, loot: Loot) -> Tensor:
        shape = loot.dataset.input_shape
        if loot.dataset.kind != "image":
            return odd_inputs(loot.dataset, self.guesses, self.seed)
        source = Patterns((shape[0], shape[1], shape[2]), mean=loot.dataset.mean, std=loot.dataset.std)
        pictures = torch.stack([source.picture(f"a thief's own {self.seed}".encode(), q) for q in range(self.guesses)])
        return retouch(model, layer, moment, ridge, pictures, source.prepare, noise=source.noise, steps=self.retouch)


@dataclass(frozen=True)
class PruneAndTune:
    """Zero the smallest weights of each tensor and train the others; biases and norms are left whole."""

    share: float = 0.5
    epochs: int = 5
    lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_treatment("zero", self.share, ("zero",))

    def __call__(self, model: nn.Module, loot: Loot) -> nn.Module:
        model = copied(model)
        layout = Layout.of(model)
        kept = torch.ones(layout.size, dtype=torch.bool)
        for name, slot in layout.tensors.items():
            weight = model.get_parameter(name).detach()
            if weight.dim() > 1:
                small = foremost(-weight.abs().flatten().cpu(), self.share)
                kept[slot.start : slot.stop] = ~small
                weight.mul_(~small.view(weight.shape).to(weight.device))
        return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed, places=kept)


def odd_inputs(dataset: Dataset, count: int, seed: int) -> Tensor:
    """Raw inputs unlike any data, of every kind there is for such a data set, in turn."""
    shape = dataset.input_shape
    kinds: list[Source]
    if dataset.kind == "text":
        blocks = Tokens(shape[0], vocabulary=dataset.vocabulary, first=min(2, dataset.vocabulary - 1))
        kinds = [blocks, replace(blocks, distinct=0)]
    elif dataset.kind == "tabular":
        kinds = [Vectors(shape[0]), Vectors(shape[0], spread=1.0), Vectors(shape[0], spread=10.0)]
    else:
        size = (shape[0], shape[1], shape[2])
        # At full noise there is little left of the pattern.
        kinds = [Patterns(size), Patterns(size, noise=0.3), Patterns(size, noise=1.0)]
        # Strokes need room.
        kinds += [WafflePatterns(size)] if min(size[1:]) >= 6 else []
    secret = f"a thief's own {seed}".encode()
    return torch.cat([kinds[i % len(kinds)].render(secret, i, range(1)) for i in range(count)])


def _layer(model: nn.Module, wanted: str | None) -> str:
    known = editable_layers(model)
    if wanted is None:
        return known[0]
    if wanted not in known:
        raise SettingError(f"no layer {wanted!r} that could bear a mark; this model has {', '.join(known)}")
    return wanted


def _matrix(model: nn.Module, layer: str) -> Tensor:
    """A layer's weights as an out × in matrix (a view)."""
    name = f"{layer}.weight"
    return Layout.of(model).slots[name].matrix(model.get_parameter(name).detach())


def _gradient_moment(model: nn.Module, layer: str, loot: Loot, *, batch: int = 256) -> Tensor:
    """The second moment of the gradients at a layer's outputs on the thief's data (out × out), up to scale."""
    outputs: list[Tensor] = []
    out, device = len(_matrix(model, layer)), next(model.parameters()).device
    moment = torch.zeros(out, out, dtype=torch.float64)
    module = model.get_submodule(layer)
    handle = module.register_forward_hook(lambda _, args, output: outputs.append(output))
    try:
        for raw, labels in zip(loot.inputs.split(batch), loot.labels.split(batch), strict=True):
            loss = F.cross_entropy(model(loot.prepare(raw).to(device)), labels.to(device), reduction="sum")
            for pull in torch.autograd.grad(loss, outputs):
                rows = rows_answered(module, pull).flatten(0, -2).cpu().double()
                moment += rows.T @ rows
            outputs.clear()
    finally:
        handle.remove()
    return moment


def _rms(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt().clamp_min(torch.finfo(tensor.dtype).tiny)


def _mean_gradient(model: nn.Module, layout: Layout, loot: Loot, *, batch: int = 64) -> Tensor:
    """How hard the thief's data pulls at each weight: the mean |gradient| over batches, as a flat vector."""
    weights = [model.get_parameter(name) for name in layout.tensors]
    device, total = weights[0].device, torch.zeros(layout.size, dtype=layout.dtype)
    batches = list(zip(loot.inputs.split(batch), loot.labels.split(batch), strict=True))
    for raw, labels in batches:
        loss = F.cross_entropy(model(loot.prepare(raw).to(device)), labels.to(device))
        pulls = torch.autograd.grad(loss, weights, materialize_grads=True)
        total += torch.cat([pull.abs().flatten().cpu() for pull in pulls])
    return total / len(batches)
