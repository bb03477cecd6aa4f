"""Colluders who subtract their models to find the region.

Fresh from the server, clients' models differ in their marks and nowhere else. `Difference` takes the places in which
they differ by more than rounding, the largest differences first, and zeroes them, draws them anew from the layer's
other weights, averages them, or trains them on the thief's data.

A region that is a subspace changes every weight of a layer a little. `DifferenceDirections` looks for it instead: the
difference of two models' layers is (T_1 − T_2) Qᵀ, so its row space is the subspace Q, or nearly so. With the right
singular vectors V of all differences, W ← W (I − V Vᵀ). What the task loses by it may be fitted again: of all matrices
that ignore V, the one that does to the thief's own data what W did. A layer in which the differences take more than
half of all directions, as in a region of places, is averaged and no more: there is no subspace to be blind to.

Both start from the average of the models, and may be followed by some epochs of training on the thief's data.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.errors import SettingError
from tramark.fleet.layout import Layout
from tramark.lab.attacks.base import Loot, generator
from tramark.lab.attacks.collusion import Pool, check_colluders
from tramark.lab.simulation.client import LocalTraining
from tramark.marks.directions import fewer_positions
from tramark.marks.layers import rows_fed

Action = Literal["zero", "redraw", "average", "finetune"]


@dataclass(frozen=True)
class Difference:
    """Find the weights in which models differ, and spoil what they hold.

    Parameters
    ----------
    action : "zero", "redraw", "average", or "finetune": train those places, and nothing else.
    share : at most this share of all weights, those that differ most; by default all that differ.
    inside : epochs of training for "finetune".
    epochs : epochs of training of the whole model afterwards.
    """

    colluders: int = 2
    action: Action = "zero"
    share: float = 1.0
    inside: int = 5
    epochs: int = 0
    lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_colluders(self.colluders)
        check_treatment(self.action, self.share, ("zero", "redraw", "average", "finetune"))

    def places(self, models: Sequence[nn.Module]) -> Tensor:
        """Where the region is taken to be: a flat mask."""
        return self._places(Pool.of(models, self.colluders))

    def _places(self, pool: Pool) -> Tensor:
        low, high = pool.flats.aminmax(dim=0)
        spread, size = high - low, torch.maximum(low.abs(), high.abs())
        for slot in pool.layout.tensors.values():
            inside = slice(slot.start, slot.stop)
            spread[inside][spread[inside] <= 4 * torch.finfo(slot.dtype).eps * size[inside]] = 0
        return foremost(spread, self.share) & (spread > 0)

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool = Pool.of(models, self.colluders)
        places, flat = self._places(pool), pool.mean()
        if self.action in ("zero", "redraw"):
            spoil(flat, pool.layout, places, self.action, seed=self.seed)
        model = pool.made(flat)
        if self.action == "finetune":
            tune(model, loot, epochs=self.inside, lr=self.lr, seed=self.seed, places=places)
        return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed)


@dataclass(frozen=True)
class DifferenceDirections:
    """Find the input directions in which models' layers differ, and make the layers blind to them.

    Parameters
    ----------
    energy : so much of the differences' energy is accounted for, by as few directions as that takes.
    directions : at most so many in a layer.
    refit : fit the blind layer to what it did before on the thief's own data (linear layers).
    epochs : epochs of training of the whole model afterwards.
    """

    colluders: int = 2
    energy: float = 0.9999
    directions: int | None = None
    refit: bool = False
    epochs: int = 0
    lr: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        check_colluders(self.colluders)
        check_energy(self.energy)
        if self.directions is not None and self.directions < 1:
            raise SettingError(f"at most {self.directions} directions: there must be at least one")

    def found(self, models: Sequence[nn.Module]) -> dict[str, Tensor]:
        """Orthonormal directions (in × q) by the name of the weight that they belong to."""
        return self._found(Pool.of(models, self.colluders))

    def _found(self, pool: Pool) -> dict[str, Tensor]:
        mean, found = pool.mean(), {}
        for name, slot in pool.layout.tensors.items():
            if len(slot.shape) < 2:
                continue
            rows = [slot.matrix(slot.of(flat - mean)) for flat in pool.flats]
            rounding = 4 * torch.finfo(slot.dtype).eps * slot.of(mean).abs().max()
            if max(float(row.abs().max()) for row in rows) > rounding:
                directions = principal(torch.cat(rows), self.energy)[:, : self.directions]
                if 2 * directions.shape[1] <= len(directions):
                    found[name] = directions
        return found

    def collude(self, models: Sequence[nn.Module], loot: Loot) -> nn.Module:
        pool = Pool.of(models, self.colluders)
        model = pool.made(pool.mean())
        linear = {f"{name}.weight": name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        for name, directions in self._found(pool).items():
            weight = pool.layout.slots[name].matrix(model.get_parameter(name).detach())
            matrix = weight.cpu().double()
            blind = matrix - matrix @ directions @ directions.T
            if self.refit and name in linear:
                moment = second_moment(model, linear[name], loot)
                blind = refitted(matrix, directions, moment)
            weight.copy_(blind)
        return tune(model, loot, epochs=self.epochs, lr=self.lr, seed=self.seed)


def check_treatment(action: str, share: float, actions: Sequence[str]) -> None:
    if action not in actions:
        raise SettingError(f"unknown action {action!r}: use one of {', '.join(actions)}")
    if not 0 < share <= 1:
        raise SettingError(f"the share of the weights must lie in (0, 1], not {share}")


def check_energy(energy: float) -> None:
    if not 0 < energy < 1:
        raise SettingError(f"the energy to keep must lie between 0 and 1, not {energy}")


def foremost(scores: Tensor, share: float) -> Tensor:
    """A mask of the share of the places with the largest scores; ties go to the earlier place."""
    mask = torch.zeros(len(scores), dtype=torch.bool)
    mask[scores.argsort(descending=True, stable=True)[: round(share * len(scores))]] = True
    return mask


def spoil(flat: Tensor, layout: Layout, places: Tensor, action: str, *, seed: int) -> None:
    """Zero some weights, or draw them anew from the others of their tensor, in place."""
    if action == "zero":
        flat[places] = 0
        return
    source = generator(seed)
    for slot in layout.tensors.values():
        values, inside = flat[slot.start : slot.stop], places[slot.start : slot.stop]
        others = values[~inside] if not inside.all() else values.clone()
        values[inside] = others[torch.randint(len(others), (int(inside.sum()),), generator=source)]


def tune(
    model: nn.Module,
    loot: Loot,
    *,
    epochs: int,
    lr: float,
    seed: int,
    places: Tensor | None = None,
    extra: Callable[[nn.Module], Tensor] | None = None,
) -> nn.Module:
    """Train a model on the thief's data, in place; `places` (a flat mask) are the only weights that move."""
    if not epochs:
        return model
    # Weight decay would move what has no gradient.
    training = LocalTraining(epochs=epochs, lr=lr, weight_decay=1e-4 if places is None else 0.0)
    only, handles = None, []
    if places is not None:
        only = []
        for name, slot in Layout.of(model).tensors.items():
            if (inside := slot.of(places)).any():
                weight = model.get_parameter(name)
                mask = inside.to(weight.device)
                handles.append(weight.register_hook(lambda gradient, mask=mask: gradient * mask))
                only.append(name)
        if not only:
            return model
    try:
        training(model, loot.dataset, loot.indices, generator=generator(seed), extra=extra, only=only)
    finally:
        for handle in handles:
            handle.remove()
    model.zero_grad()
    return model.eval()


def principal(rows: Tensor, energy: float) -> Tensor:
    """As few orthonormal directions (in × q) as hold this share of the energy of some rows (N × in)."""
    rows = rows.double()
    if len(rows) >= rows.shape[1]:
        return leading(rows.T @ rows, energy)
    # A small Gram matrix has the same spectrum, and what it combines of the rows are the directions.
    directions: Tensor = F.normalize(rows.T @ leading(rows @ rows.T, energy), dim=0)
    return directions


def leading(moment: Tensor, energy: float) -> Tensor:
    """As few eigenvectors of a second moment as hold this share of its trace, the largest first."""
    values, vectors = torch.linalg.eigh(moment.double())
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    kept: Tensor = vectors[:, : int((values.cumsum(0) < energy * values.sum()).sum()) + 1]
    return kept


def layer_inputs(model: nn.Module, layer: str, loot: Loot, *, batch: int = 256) -> Iterator[Tensor]:
    """What a layer is fed on the thief's data (N × in), batch by batch, in double precision."""
    seen: list[Tensor] = []
    device = next(model.parameters()).device
    handle = model.get_submodule(layer).register_forward_pre_hook(
        lambda module, args: seen.append(fewer_positions(rows_fed(module, args[0]), sys.maxsize))
    )
    try:
        for raw in loot.inputs.split(batch):
            with torch.no_grad():
                model(loot.prepare(raw).to(device))
            yield torch.cat([inputs.flatten(0, -2).cpu().double() for inputs in seen])
            seen.clear()
    finally:
        handle.remove()


def second_moment(model: nn.Module, layer: str, loot: Loot) -> Tensor:
    """The second moment of a layer's inputs on the thief's data (in × in)."""
    _, inputs = Layout.of(model).slots[f"{layer}.weight"].sides
    moment = torch.zeros(inputs, inputs, dtype=torch.float64)
    for rows in layer_inputs(model, layer, loot):
        moment += rows.T @ rows
    return moment / len(loot.indices)


def principal_inputs(model: nn.Module, layer: str, loot: Loot, energy: float) -> Tensor:
    """As few orthonormal directions (in × q) as hold this share of the energy of a layer's inputs."""
    held: list[Tensor] = []
    for rows in layer_inputs(model, layer, loot):
        held.append(rows)
        if sum(map(len, held)) >= rows.shape[1]:
            return leading(second_moment(model, layer, loot), energy)
    return principal(torch.cat(held), energy)


def refitted(matrix: Tensor, directions: Tensor, moment: Tensor, *, ridge: float = 1e-4) -> Tensor:
    """Of all matrices that ignore some directions, the one that does most nearly what `matrix` does to such inputs.

    With P = I − V Vᵀ and Z the least squares fit of W X by Z P X, it is Z P.
    """
    blind = torch.eye(len(moment), dtype=moment.dtype) - directions @ directions.T
    seen = blind @ moment @ blind
    seen.diagonal().add_(ridge * moment.diagonal().mean())
    fit: Tensor = torch.linalg.solve(seen, blind @ moment @ (matrix - matrix @ blind).T).T
    # Only what was lost is fitted, so that where nothing was, nothing changes.
    return (matrix + fit) @ blind
