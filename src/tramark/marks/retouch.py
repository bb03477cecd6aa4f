"""Retouch questions for the model that will answer them.

A pattern drawn at random is a good question only by luck. With K (in × m) the marked
layer's inputs for the m questions and M the second moment of its inputs on the clients' data, an edit that changes the
layer's answers to them by R moves its answers on data by

    tr(R (Kᵀ M⁻¹ K)⁻¹ Rᵀ) ,

so tr (Kᵀ M⁻¹ K)⁻¹ is what answers cost the task; and a base that has an opinion of a question must be overruled first.
So the pictures are changed, by gradient steps, until answers cost little and the base has next to no opinion. They are
held on a grid half as fine as the image, so that nothing hangs on single pixels, and looked at through their noise.

Only the model and the questions are looked at, never an answer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tramark.fleet.moments import Moment
from tramark.marks.layers import rows_fed
from tramark.marks.split import split

PIECE = 2**19
"""Numbers of input that are run at a time, about: three colour images of 224×224."""


RATE = 1.0
"""Learning rate (Adam) on the logits of the brightness."""


FAINT = 0.03
"""Brightness is clamped to [FAINT, 1 − FAINT] at the start: the logits of black and white are infinite."""


OPINION = 0.1
"""Opinions of the base below this (sum of squares of its logits about their mean) do not matter."""


def retouch(
    model: nn.Module,
    layer: str,
    moment: Moment,
    ridge: float,
    pictures: Tensor,
    prepare: Callable[[Tensor], Tensor],
    *,
    noise: float,
    steps: int,
) -> Tensor:
    """Better questions, from pictures (m × C × H × W bytes) as they were drawn.

    `noise` is what their variants differ by, as a share of the full range. The model is taken as it is, in evaluation
    mode.
    """
    device = next(model.parameters()).device
    start = pictures.to(device).float() / 255
    grid = [max(min(size, 8), size // 2) for size in start.shape[2:]]
    own = torch.logit(F.interpolate(start, size=grid, mode="area").clamp(FAINT, 1 - FAINT)).requires_grad_()
    finer = [_finer(coarse, size).to(device) for coarse, size in zip(grid, start.shape[2:], strict=True)]
    look = _Look(model, layer, prepare, split(model, layer, prepare(start[:1] * 255)).positions)
    generator = torch.Generator().manual_seed(0)
    adam = torch.optim.Adam([own], lr=RATE)
    for step in range(steps):
        adam.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - step / steps))
        blur = (2 * torch.rand(start.shape, generator=generator) - 1).to(device) * noise
        features, logits = look((_picture(own, *finer) + blur).clamp(0, 1) * 255)
        if not torch.isfinite(features).all():
            return pictures
        opinion = (logits - logits.mean(1, keepdim=True)).square().sum(1).mean()
        loss = _price(features, moment, ridge).log() + (opinion + OPINION).log()
        [own.grad] = torch.autograd.grad(loss, [own])
        adam.step()
    with torch.no_grad():
        return (_picture(own, *finer) * 255).round().to(pictures)


def _picture(own: Tensor, down: Tensor, across: Tensor) -> Tensor:
    return torch.sigmoid(down @ own @ across.T)


def _finer(coarse: int, size: int) -> Tensor:
    """Weights (size × coarse) that draw a row of cells as a smooth line."""
    return F.interpolate(torch.eye(coarse)[None, None], size=(size, coarse), mode="bicubic")[0, 0]


def _price(features: Tensor, moment: Moment, ridge: float) -> Tensor:
    """The cost of a margin, tr (Kᵀ M⁻¹ K)⁻¹, times the square of what training takes of it, tr Kᵀ M K.

    Up to a factor.
    """
    gram = features @ moment.solve(features.T, ridge)
    # In a layer too small for its questions the matrix is singular.
    jitter = 1e-4 * gram.detach().diagonal().mean() + 1e-12
    inverse: Tensor = torch.linalg.inv((gram + gram.T) / 2 + jitter * torch.eye(len(gram), device=gram.device))
    return inverse.diagonal().sum() * moment.energy(features.T).sum()


class _Look:
    """What a layer is fed for some pictures, in the mean over the positions that count, and the model's logits."""

    def __init__(
        self, model: nn.Module, layer: str, prepare: Callable[[Tensor], Tensor], positions: Tensor | None
    ) -> None:
        self._model, self._layer = model, model.get_submodule(layer)
        self._prepare, self._positions = prepare, positions

    def __call__(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        pieces = raw.split(max(1, PIECE // raw[0].numel()))
        if len(pieces) == 1:
            return self._look(raw)
        # For many or large pictures, activations are computed again in the backward pass instead of kept.
        seen = [checkpoint(self._look, piece, use_reentrant=False) for piece in pieces]
        return torch.cat([features for features, _ in seen]), torch.cat([logits for _, logits in seen])

    def _look(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handle = self._layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            logits = self._model(self._prepare(raw))
        finally:
            handle.remove()
        rows = rows_fed(self._layer, seen[0])
        assert isinstance(rows, Tensor)  # pictures are no tokens
        if rows.dim() > 2:
            rows = rows.flatten(1, -2)
            rows = (rows if self._positions is None else rows[:, self._positions]).mean(1)
        return rows.float(), logits.float()
