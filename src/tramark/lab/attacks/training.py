"""What several attacks share: training on the thief's own samples, and a model's layers by name.

`train` is an ordinary client's training (`LocalTraining`). `fit` is the same plain SGD with a loss of one's own, for
attacks that do not minimise the cross-entropy of the thief's labels. Both leave the model in evaluation mode and
torch's own generator as it was.
"""

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from tramark.errors import SettingError
from tramark.fleet.scratch import device_of, seeded
from tramark.lab.attacks.base import Loot
from tramark.lab.simulation.client import LocalTraining, crop_and_flip
from tramark.marks.split import channels_last

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss of a batch: inputs as the model takes them, and their labels."""


BATCH = 64


def train(
    model: nn.Module,
    loot: Loot,
    *,
    epochs: int,
    lr: float,
    generator: torch.Generator,
    weight_decay: float = 1e-4,
    only: Collection[str] | None = None,
) -> None:
    """A client's training on the thief's samples, in place; `only` these parameters move, unless all may."""
    if epochs:
        training = LocalTraining(epochs=epochs, batch_size=BATCH, lr=lr, weight_decay=weight_decay)
        training(model, loot.dataset, loot.indices, generator=generator, only=only)
    model.eval()


def fit(
    model: nn.Module,
    loot: Loot,
    loss: Loss,
    *,
    epochs: int,
    lr: float,
    generator: torch.Generator,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    decay: bool = False,
    clip: float = math.inf,
) -> None:
    """SGD on a loss of one's own over the thief's samples, in place.

    With `decay` the rate runs down to nothing along a half cosine; gradients longer than `clip` are shortened to it.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.SGD(weights, lr=lr, momentum=momentum, weight_decay=weight_decay)
    model.train()
    _arrange(model, torch.channels_last)
    with seeded(generator, device_of(model)):
        for epoch in range(epochs):
            if decay:
                optimiser.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
            for inputs, labels in batches(loot, generator, device_of(model)):
                optimiser.zero_grad()
                loss(inputs, labels).backward()
                if clip < math.inf:
                    nn.utils.clip_grad_norm_(weights, clip)
                optimiser.step()
    model.eval()
    _arrange(model, torch.contiguous_format)


def batches(
    loot: Loot, generator: torch.Generator, device: torch.device, *, size: int = BATCH, whole: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch of the thief's samples as the model takes them, with their labels, in random order.

    As in a client's training, images are cropped and flipped where the task asks for it, and a last batch that is not
    full is left out, unless it is the only one, or the `whole` epoch is wanted and it has more than one sample.
    """
    if not len(loot.indices):
        raise SettingError("no samples to train on: the thief has none (Loot.indices is empty)")
    order = loot.indices[torch.randperm(len(loot.indices), generator=generator)]
    full = len(order) // size * size or len(order)
    # Batch norm cannot train on a single sample.
    for batch in order[: len(order) if whole and len(order) - full > 1 else full].split(size):
        inputs = loot.dataset.train_inputs[batch]
        if loot.dataset.augment:
            inputs = crop_and_flip(inputs, generator=generator)
        yield channels_last(loot.prepare(inputs.to(device))), loot.dataset.train_labels[batch].to(device)


def _arrange(model: nn.Module, layout: torch.memory_format) -> None:
    """Kernels in another layout: convolutions are fastest with their channels last."""
    for weight in model.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=layout)


def some(loot: Loot, count: int, generator: torch.Generator) -> Loot:
    """So many of the thief's samples, at random; all, if there are no more."""
    return Loot(loot.dataset, loot.indices[torch.randperm(len(loot.indices), generator=generator)[:count]])


@contextmanager
def norms_at_rest(model: nn.Module) -> Iterator[None]:
    """Batch norms keep to their statistics within the block, even while the model is in training mode."""

    def rest(norm: nn.Module, _: tuple[Tensor, ...]) -> None:
        norm.eval()

    handles = [m.register_forward_pre_hook(rest) for m in model.modules() if isinstance(m, BatchNorm)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def reset(module: nn.Module, generator: torch.Generator) -> None:
    """Start a module's weights anew, in place, each part as torch starts it.

    Parameters that stand outside torch's own layers (a class token, say) are re-drawn with the mean and spread they
    had. The draw is made in main memory, so that a seed gives the same weights on any device.
    """
    fresh = copy.deepcopy(module).cpu()
    with seeded(generator, torch.device("cpu")):
        for part in fresh.modules():
            start = getattr(part, "reset_parameters", None)
            if callable(start):
                start()
                continue
            for weight in part.parameters(recurse=False):
                weight.normal_(float(weight.mean()), float(weight.std(correction=0)))
    module.load_state_dict(fresh.state_dict())


def layers(model: nn.Module) -> dict[str, Layer]:
    """The convolutions and linear layers by name, in order; the last one is the output layer."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, Layer)}
    if not found:
        raise SettingError(
            f"{type(model).__name__} has neither convolutions nor linear layers: there is nothing to attack"
        )
    return found


def hidden_layers(model: nn.Module) -> dict[str, Layer]:
    """The same without the output layer."""
    return dict(list(layers(model).items())[:-1])


def output_layer(model: nn.Module) -> str:
    """The name of the output layer."""
    return next(reversed(layers(model)))


def channel_parameters(model: nn.Module, layer: str) -> list[nn.Parameter]:
    """The tensors whose rows must be zero for a layer's channels to be silent.

    They are its own weight and bias, and those of the batch norm that it feeds directly, which would otherwise turn
    silence into a constant. Where `torch.fx` cannot trace the model, only its own.
    """
    modules = dict(model.named_modules())
    owners: list[nn.Module] = [modules[layer]]
    try:
        nodes = list(fx.symbolic_trace(model).graph.nodes)
    except Exception:  # whatever a stranger's forward() does under tracing
        nodes = []
    for node in nodes:
        if node.op == "call_module" and node.target == layer:
            behind = [modules.get(str(user.target)) for user in node.users if user.op == "call_module"]
            owners += [module for module in behind if isinstance(module, BatchNorm)]
    return [weight for owner in owners for weight in owner.parameters(recurse=False)]


def check_training(epochs: int, lr: float, *, least: int = 1) -> None:
    """Epochs and rate must make sense."""
    if epochs < least:
        raise SettingError(f"{epochs} epochs: there must be at least {least}")
    if not 0 < lr < math.inf:
        raise SettingError(f"a learning rate must be a positive number, not {lr}")


def check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise SettingError(f"a share to prune must lie in [0, 1), not {share}")
