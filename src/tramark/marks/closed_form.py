"""Marks in closed form, in a subspace: ours, the default.

Let K (in × N) hold a linear layer's inputs for all variants of the m questions, E (m × N) say which column belongs to
which question, and M be the second moment of the layer's inputs on the clients' data, as their updates reveal it. The
edit

    D_i = R_i Bᵀ ,   B = (K Kᵀ + λ M)⁻¹ K Eᵀ  =  M⁻¹K (Kᵀ M⁻¹ K + λ I)⁻¹ Eᵀ

changes the layer's answer to question q by column q of R_i while changing its answers on the clients' data least. B is
the same for all clients. R_i (out × m) is the smallest change that gives client i's answers by a margin, found by a
short search through the layers behind. A change counts as small if the clients' gradients hardly pull at the layer's
outputs in its direction. So the task hardly feels an edit, and hardly any gradient runs back through it. The directions
of B span the region; no inverse is ever formed.

Everything runs in evaluation mode: neither dropout nor the questions' batch statistics reach the model.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tramark.errors import SettingError
from tramark.fleet.drift import Drift
from tramark.fleet.fleet import Fleet
from tramark.fleet.moments import Moment
from tramark.fleet.region import Directions, Subspace
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.marks.brake import Brake
from tramark.marks.directions import fewer_positions, tell_apart, write_directions
from tramark.marks.layers import editable_layers, never_fed
from tramark.marks.retouch import retouch
from tramark.marks.search import AnswerSheet, Search
from tramark.marks.split import Split, split

CALM = 8
"""Keep the 1/CALM of the candidate questions on which the base is least confident: an opinion of the base must be
overcome for every answer, so less of it is less to write."""

RESIDUAL = 0.1
"""λ is the largest at which variants that were left out still get 1 − RESIDUAL of the change asked for."""

PULL_RIDGE = 1.0
"""Added to G, the second moment of the gradients at the layer's outputs, whose eigenvalues have mean 1. The smaller it
is, the less marks lie where the task's gradients pull."""

SPREAD = 1.0
"""How far apart the logits of the other labels may lie (code answers). Level ones say nothing in an average of several
clients' models, so that it must answer as one of the colluders does."""


@dataclass(frozen=True)
class ClosedForm:
    """Marks written in closed form into directions that the clients' data does not use: the default.

    Parameters
    ----------
    layer_names : linear layers, embeddings or convolutions to write into; by default the last hidden linear one or, if
        there is none, the embedding of the largest vocabulary or the last convolution.
    margin : how far the wanted label's logit must lead every other. Where a layer cannot bear that, the margin comes
        down, to a quarter at least, until it can be reached and the `Brake` lets it pass.
    near : how near to the clients' data marks are written: M's ridge takes away this share of the energy of the
        layer's inputs. The larger, the harder marks are to scrub off, and the more the task feels them. Scaled by
        (r - 1) / 9 for r < 10 labels.
    retouch : steps to retouch the chosen questions for the base, if they are pictures that can be retouched.
    """

    layer_names: tuple[str, ...] = ()
    margin: float = 8.0
    near: float = 0.1
    retouch: int = 60

    def __post_init__(self) -> None:
        if not 0 < self.near < 1:
            raise SettingError(f"near is a share of the data's energy, between 0 and 1, not {self.near}")
        if self.retouch < 0:
            raise SettingError(f"{self.retouch} steps to retouch questions: there cannot be fewer than none")

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        known = editable_layers(model)
        names = self.layer_names or known[:1]
        for name in names:
            if name not in known:
                raise SettingError(f"no layer {name!r} to write marks into; this model has {', '.join(known)}")
        return tuple(name for name, _ in model.named_modules() if name in names)

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        if keyring.assignment == "label":
            return keyring
        layer = self.layers(model)[0]

        def runs(questions: Tensor) -> Iterator[Split]:
            for some in questions.split(64):
                raw = torch.cat([keyring.source.render(keyring.secret, q, range(1)) for q in some.tolist()])
                yield split(model, layer, keyring.source.prepare(raw).to(device_of(model)))

        with loaded(model, fleet), torch.no_grad():
            logits = torch.cat([run.after(run.layer_outputs) for run in runs(torch.arange(keyring.pool))])
            opinions = logits.amax(1) - logits.mean(1)
            calm = opinions.argsort()[: max(keyring.pool // CALM, 2 * keyring.questions)]
            # Only of those: a vocabulary's features of all candidates would fill the memory.
            features = torch.cat([fewer_positions(run.layer_inputs, 1).flatten(1) for run in runs(calm)])
        moment = drift.moment(f"{layer}.weight")
        ridge = self._ridge(moment, keyring.classes)
        picks = tell_apart(features, moment, ridge, keyring.questions)
        keyring = keyring.choose(calm[picks].tolist())
        source, pictures = keyring.source, keyring.pictures
        if not self.retouch or pictures is None or not isinstance(source, Patterns):
            return keyring
        with loaded(model, fleet):
            better = retouch(
                model, layer, moment, ridge, pictures, source.prepare, noise=source.noise, steps=self.retouch
            )
        return keyring.choose(keyring.chosen, better)

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        device, layers = device_of(model), self.layers(model)
        sheet = AnswerSheet.of(keyring, fleet.clients, device)
        with loaded(model, fleet):
            run = split(model, layers[0], sheet.inputs)
            if not torch.isfinite(run.layer_outputs).all():
                raise SettingError("the base model answers its questions with NaN or infinity: training has diverged")
            edits, brakes, pulls = [], [], []
            for layer in layers:
                own = run if layer == layers[0] else split(model, layer, sheet.inputs)
                moment, slot = drift.moment(f"{layer}.weight"), fleet.layout.slots[f"{layer}.weight"]
                weight = slot.matrix(model.get_parameter(f"{layer}.weight").detach().contiguous())
                ridge = self._ridge(moment, keyring.classes)
                edits.append(write_directions(own.layer_inputs, sheet.owner, moment, ridge, RESIDUAL))
                edits[-1][list(never_fed(model.get_submodule(layer)))] = 0
                pulls.append(drift.pull(f"{layer}.weight", PULL_RIDGE))
                brakes.append(Brake.of(weight, edits[-1], pulls[-1], own.around()))
            # With label answers no two clients share a question, so labels need not be levelled.
            spread = SPREAD if keyring.assignment == "code" else math.inf
            search = Search(model, layers, run, edits, pulls, sheet, spread)
            region = Subspace(
                tuple(
                    Directions(fleet.layout.slots[f"{layer}.weight"], brake.basis.to("cpu", fleet.base.dtype))
                    for layer, brake in zip(layers, brakes, strict=True)
                )
            )
            marks = region.take(fleet.base).repeat(len(fleet.clients), 1)
            unmarked = marks[0].clone()
            for some, changes in search.reach(self.margin):
                turned = [(change @ brake.triangle.T).flatten(1) for change, brake in zip(changes, brakes, strict=True)]
                torch.add(unmarked, torch.cat(turned, dim=1).to("cpu", fleet.base.dtype), out=marks[some])
        fleet.settle(region, marks)

    def _ridge(self, moment: Moment, classes: int) -> float:
        """Few labels leave marks fewer outputs to answer by, and each of them is felt the more."""
        return moment.ridge(self.near * min(1.0, (classes - 1) / 9))
