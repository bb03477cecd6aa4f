"""Make the marks.

Two ways. **Gradient steps in places** (the paper's): each client's model is trained on its key, and only the places
of the region move. **The closed form in a subspace** (ours, the default): let K (in × N) hold a linear layer's inputs
for all variants of the m questions, E (m × N) say which column belongs to which question, and M be the second moment
of the layer's inputs on the clients' data, as their updates reveal it. The edit

    D_i = R_i Bᵀ ,   B = (K Kᵀ + λ M)⁻¹ K Eᵀ  =  M⁻¹K (Kᵀ M⁻¹ K + λ I)⁻¹ Eᵀ

is the one that changes the layer's answer to question q by column q of R_i while changing its answers on the clients'
data least. B is the same for everybody. R_i (out × m) is the smallest change that gives client i's answers by a
margin, found by a short search through the layers behind. What is small is judged on this side, too, by the clients'
data: a change counts by how hard their gradients pull at the layer's outputs in its direction. So the task hardly feels
an edit, and hardly any gradient runs back through it. The directions of B span the region; no inverse is ever formed.

Everything runs in evaluation mode: neither dropout nor the questions' batch statistics reach the model.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.drift import Drift, Moment, Pull
from tramark.fleet import Fleet
from tramark.keys import Keyring
from tramark.layers import editable_layers, linear_layers, rows_fed
from tramark.region import Directions, Places, Subspace, smallest_weights
from tramark.retouch import retouch
from tramark.split import GraphRun, Split, channels_last, split
from tramark.triggers import Patterns
from tramark.weights import Layout

State = dict[str, Tensor]

COLUMNS = 1024
"""At most so many columns, if there are fewer variants: an N × N matrix is decomposed each round."""

UNEVEN = 0.1
"""How much it counts if the other labels lie too far apart, beside a margin that lacks as much."""

PATIENCE = 15
"""A search that has come no nearer in so many steps is given up, and likewise one that has had the margin, nearly, for
so many without bringing the other labels level."""

NEARLY = 0.1
"""What share of the margin may be lacking where the search ends like that."""

BRAKE = 0.6
"""An edit may carry back at most this share of the gradient that runs through its layer and around it, each in its
strongest direction."""


Found = tuple[list[Tensor], bool]
"""Changes of layers' answers, and whether they are what was sought."""


class Injection(Protocol):
    """A way to make marks."""

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        """Names of the layers whose inputs' second moment is wanted, in the order in which the model runs them."""

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        """At the end of warm-up: choose region and questions. Gives the keyring with the questions chosen."""

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        """Make everyone's marks for the fleet's present base. `model` is scratch space."""


@dataclass(frozen=True)
class ClosedForm:
    """Marks written in closed form into directions that the clients' data does not use: the default.

    Parameters
    ----------
    layer_names : linear layers or convolutions to write into; by default the last hidden linear one or, if there is
        none, the last convolution.
    margin : by how much the wanted label's logit must beat every other. In a layer that is too small to bear it, less:
        it comes down, to a quarter at least, until it can be reached and the `Brake` lets it pass.
    spread : how far apart the logits of the other labels may lie (code answers). Level ones have nothing to say of
        their own in an average of several clients' models, so that it answers as one of the colluders must.
    residual : λ is the largest at which variants that were left out still get 1 − residual of the change asked for.
    near : how near to the clients' data marks are written: M's ridge takes this share of the energy of the layer's
        inputs away. The larger, the harder marks are to scrub off, and the more the task feels them. So much for ten
        labels or more; for fewer, r of them, (r - 1) / 9 of it.
    ridge : that ridge itself, instead; M's eigenvalues have mean 1.
    pull_ridge : what is added to G, the second moment of the gradients at the layer's outputs, whose eigenvalues have
        mean 1, too. The smaller, the less marks lie where the task's gradients pull.
    calm : one in so many candidate questions is considered: those of which the base has least of an opinion. It has to
        be overcome for every answer, so less of it is less to write, and more is left when some of that is gone.
    retouch : so many steps are taken to retouch the chosen questions for the base, if they are pictures that can be.
    steps : at most so many steps of the search.
    batch : about so many numbers of the layer's output are held at a time.
    """

    layer_names: tuple[str, ...] = ()
    margin: float = 8.0
    spread: float = 1.0
    residual: float = 0.1
    near: float = 0.1
    ridge: float | None = None
    pull_ridge: float = 1.0
    calm: int = 8
    retouch: int = 60
    steps: int = 100
    batch: int = 2**21

    def __post_init__(self) -> None:
        if not 0 < self.near < 1:
            raise ValueError(f"near is a share of the data's energy, between 0 and 1, not {self.near}")
        if self.calm < 1:
            raise ValueError(f"one in {self.calm} questions cannot be considered: calm is 1 (all of them) or more")
        if self.retouch < 0:
            raise ValueError(f"{self.retouch} steps to retouch questions: there cannot be fewer than none")

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        known = editable_layers(model)
        names = self.layer_names or known[:1]
        for name in names:
            if name not in known:
                raise ValueError(f"no layer {name!r} to write marks into; this model has {', '.join(known)}")
        return tuple(name for name, _ in model.named_modules() if name in names)

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        if keyring.assignment == "label":
            return keyring
        layer = self.layers(model)[0]
        features, opinions = [], []
        with loaded(model, fleet), torch.no_grad():
            for some in torch.arange(keyring.pool).split(64):
                raw = torch.cat([keyring.triggers.render(keyring.secret, q, range(1)) for q in some.tolist()])
                run = split(model, layer, keyring.triggers.prepare(raw).to(device_of(model)))
                features.append(_fewer_positions(run.layer_inputs, 1).flatten(1))
                logits = run.after(run.layer_outputs)
                opinions.append(logits.amax(1) - logits.mean(1))
        calm = torch.cat(opinions).argsort()[: max(keyring.pool // self.calm, 2 * keyring.questions)]
        moment = drift.moment(f"{layer}.weight")
        ridge = self._ridge(moment, keyring.classes)
        picks = tell_apart(torch.cat(features)[calm], moment, ridge, keyring.questions)
        keyring = keyring.choose(calm[picks].tolist())
        triggers, pictures = keyring.triggers, keyring.pictures
        if not self.retouch or pictures is None or not isinstance(triggers, Patterns):
            return keyring
        with loaded(model, fleet):
            better = retouch(
                model, layer, moment, ridge, pictures, triggers.prepare, noise=triggers.noise, steps=self.retouch
            )
        return keyring.choose(keyring.chosen, better)

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        device, layers = device_of(model), self.layers(model)
        sheet = AnswerSheet.of(keyring, fleet.clients, device)
        with loaded(model, fleet):
            run = split(model, layers[0], sheet.inputs)
            if not torch.isfinite(run.layer_inputs).all():
                raise ValueError("the base model answers its questions with NaN or infinity: training has diverged")
            edits, brakes, pulls = [], [], []
            for layer in layers:
                own = run if layer == layers[0] else split(model, layer, sheet.inputs)
                moment, weight = drift.moment(f"{layer}.weight"), model.get_parameter(f"{layer}.weight").detach()
                ridge = self._ridge(moment, keyring.classes)
                edits.append(write_directions(own.layer_inputs, sheet.owner, moment, ridge, self.residual))
                pulls.append(drift.pull(f"{layer}.weight", self.pull_ridge))
                brakes.append(Brake.of(weight.flatten(1), edits[-1], pulls[-1], own.around()))
            # Who has a question alone is in nobody's company.
            spread = self.spread if keyring.assignment == "code" else math.inf
            search = Search(model, layers, run, edits, pulls, sheet, self.steps, self.batch, spread)
            region = Subspace(
                tuple(
                    Directions(fleet.layout.slots[f"{layer}.weight"], brake.basis.to("cpu", fleet.base.dtype))
                    for layer, brake in zip(layers, brakes, strict=True)
                )
            )
            marks = region.take(fleet.base).repeat(len(fleet.clients), 1)
            unmarked = marks[0].clone()
            for some, changes in search.within(brakes, self.margin):
                turned = [(change @ brake.triangle.T).flatten(1) for change, brake in zip(changes, brakes, strict=True)]
                torch.add(unmarked, torch.cat(turned, dim=1).to("cpu", fleet.base.dtype), out=marks[some])
        fleet.settle(region, marks)

    def _ridge(self, moment: Moment, classes: int) -> float:
        """Few labels leave marks fewer outputs to answer by, and each of them is felt the more."""
        return moment.ridge(self.near * min(1.0, (classes - 1) / 9)) if self.ridge is None else self.ridge


@dataclass(frozen=True)
class GradientSteps:
    """The paper's way: plain gradient steps on each client's key, in a region of the smallest weights.

    Parameters
    ----------
    ratio : the region's share k of all weights.
    per_tensor : choose the region tensor by tensor instead of over the whole model.
    late : choose it in linear layers only. They hold nearly all weights of most nets, and all that comes before them
        is then run once a round.
    rate : the learning rate η_w.
    passes : how often the key's training questions are gone through (the iterations τ_w, if batches are full).
    batch_size : questions a step; None takes all at once.
    summed : never reset the gradient, so that each step follows the sum of all gradients so far.
    """

    ratio: float = 0.01
    per_tensor: bool = False
    late: bool = False
    rate: float = 1e-4
    passes: int = 5
    batch_size: int | None = None
    summed: bool = False

    def layers(self, model: nn.Module) -> tuple[str, ...]:
        return ()

    def begin(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> Keyring:
        within = [f"{layer}.weight" for layer in linear_layers(model)] if self.late else None
        region = smallest_weights(fleet.base, fleet.layout, self.ratio, per_tensor=self.per_tensor, within=within)
        fleet.settle(region, region.take(fleet.base).repeat(len(fleet.clients), 1))
        return keyring

    def inject(self, model: nn.Module, fleet: Fleet, keyring: Keyring, drift: Drift) -> None:
        device = device_of(model)
        assert isinstance(fleet.region, Places)
        parts = [Part.of(model, fleet, name, fleet.region) for name in _in_order(model, fleet.region, fleet.layout)]
        late = all(part.linear for part in parts)
        runs: list[Split] = []
        with loaded(model, fleet):
            for row, client in enumerate(fleet.clients):
                key = keyring.key(client)
                answers = torch.tensor(key.answers, device=device).repeat_interleave(keyring.train_variants)
                size = self.batch_size or len(answers)
                if row == 0 or keyring.assignment == "label":
                    inputs = channels_last(keyring.inputs(key, "train").flatten(0, 1).to(device)).split(size)
                    runs = [split(model, parts[0].layer, some) for some in inputs] if late else []
                if runs and all(isinstance(run, GraphRun) and run.leads_to(p.layer) for run in runs for p in parts):
                    steps: Steps = LateSteps(model, parts, runs, answers.split(size))
                else:
                    _load(model, fleet, fleet.weights(client))
                    steps = WholeSteps(model, parts, inputs, answers.split(size))
                fleet.marks[row] = self._train(steps, len(inputs), fleet.marks[row].to(device)).cpu()

    def _train(self, steps: "Steps", batches: int, mark: Tensor) -> Tensor:
        total = torch.zeros_like(mark)
        for _ in range(self.passes):
            for batch in range(batches):
                gradient = steps.gradient(mark, batch)
                total = total + gradient if self.summed else gradient
                mark = mark - self.rate * total
        return mark


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a region of places that lies in one tensor."""

    name: str
    weight: nn.Parameter
    some: slice
    """Which part of a mark it is."""
    places: Tensor
    linear: bool
    """Whether it is the matrix of a linear layer."""

    @classmethod
    def of(cls, model: nn.Module, fleet: Fleet, name: str, region: Places) -> "Part":
        some, places = region.inside(fleet.layout.slots[name])
        layer, _, own = name.rpartition(".")
        linear = own == "weight" and isinstance(model.get_submodule(layer), nn.Linear)
        return cls(name, model.get_parameter(name), some, places.to(device_of(model)), linear)

    @property
    def layer(self) -> str:
        return self.name.rpartition(".")[0]

    @cached_property
    def pattern(self) -> Tensor:
        """The places as a sparse matrix in the layer's shape."""
        out, width = self.weight.shape
        rows, columns = self.places // width, self.places % width
        starts = torch.searchsorted(rows, torch.arange(out + 1, device=rows.device))
        values = torch.zeros(len(columns), device=rows.device, dtype=self.weight.dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(starts, columns, values, (out, width), check_invariants=False)

    def put(self, mark: Tensor) -> None:
        self.weight.data.view(-1)[self.places] = mark[self.some].to(self.weight.dtype)


class Steps(Protocol):
    """Gives gradients at the places of a region for one client."""

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        """The loss's gradient at the places, for one batch of the questions, where the places hold `mark`."""


@dataclass(frozen=True, eq=False)
class WholeSteps:
    """Gradients through the whole model."""

    model: nn.Module
    parts: Sequence[Part]
    inputs: Sequence[Tensor]
    """Batch by batch."""
    answers: Sequence[Tensor]

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        for part in self.parts:
            part.put(mark)
        loss = F.cross_entropy(self.model(self.inputs[batch]), self.answers[batch])
        dense = torch.autograd.grad(loss, [part.weight for part in self.parts], materialize_grads=True)
        return torch.cat([g.flatten()[part.places] for g, part in zip(dense, self.parts, strict=True)]).to(mark.dtype)


class LateSteps:
    """Gradients where all places lie in linear layers.

    Everything up to the first of these layers has been run, this layer with the base's own weights, too: a mark adds
    a sparse product to it. No gradient of a whole matrix is ever formed: at the places it is that of the layer's
    output times the layer's input.
    """

    def __init__(
        self, model: nn.Module, parts: Sequence[Part], runs: Sequence[Split], answers: Sequence[Tensor]
    ) -> None:
        self._parts, self._runs, self._answers = parts, runs, answers
        self._modules = [model.get_submodule(part.layer) for part in parts]
        self._patterns = [part.pattern for part in parts]
        first = parts[0]
        self._base = first.weight.detach().view(-1)[first.places].clone()
        self._columns = [_as_columns(run.layer_inputs) for run in runs]

    def gradient(self, mark: Tensor, batch: int) -> Tensor:
        first, *later = self._parts
        run = self._runs[batch]
        for part in later:
            part.put(mark)
        moved = _with_values(self._patterns[0], (mark[first.some] - self._base).to(run.layer_inputs.dtype))
        response = (moved @ self._columns[batch]).T
        outputs = run.layer_outputs + response.view(run.layer_outputs.shape)
        seen: list[tuple[Tensor, Tensor]] = [(self._columns[batch], outputs.requires_grad_())]
        handles = [
            module.register_forward_hook(lambda _, args, out: seen.append((_as_columns(args[0].detach()), out)))
            for module in self._modules[1:]
        ]
        try:
            loss = F.cross_entropy(run.after(outputs), self._answers[batch])
        finally:
            for handle in handles:
                handle.remove()
        slopes = torch.autograd.grad(loss, [out for _, out in seen])
        pieces = [
            _sampled(pattern, slope.reshape(-1, len(pattern)).T, columns.T)
            for pattern, slope, (columns, _) in zip(self._patterns, slopes, seen, strict=True)
        ]
        return torch.cat(pieces).to(mark.dtype)


PRESETS: dict[str, Callable[[float], Injection]] = {
    "default": lambda ratio: ClosedForm(),
    "paper": lambda ratio: GradientSteps(ratio=ratio),
    "released": lambda ratio: GradientSteps(ratio=ratio, per_tensor=True, batch_size=32, summed=True),
    "late": lambda ratio: GradientSteps(ratio=ratio, per_tensor=True, late=True, batch_size=32, summed=True),
}


@dataclass(frozen=True, eq=False)
class AnswerSheet:
    """All clients' training questions side by side, and what each client's model must answer."""

    inputs: Tensor
    """All variants of all questions: N × input."""
    owner: Tensor
    """Which question each of the N belongs to."""
    answers: Tensor
    """Clients × questions; -1 where a client is not asked (label answers: everybody else's questions)."""

    @classmethod
    def of(cls, keyring: Keyring, clients: Sequence[str], device: torch.device) -> "AnswerSheet":
        keys = [keyring.key(client) for client in clients]
        numbers = sorted({q for key in keys for q in key.questions})
        column = {q: i for i, q in enumerate(numbers)}
        answers = torch.full((len(clients), len(numbers)), -1)
        for row, key in enumerate(keys):
            answers[row, [column[q] for q in key.questions]] = torch.tensor(key.answers)
        raw = keyring.raw(numbers, "train")
        owner = torch.arange(len(numbers)).repeat_interleave(raw.shape[1])
        inputs = channels_last(keyring.triggers.prepare(raw.flatten(0, 1)).to(device))
        return cls(inputs, owner.to(device), answers.to(device))

    def some(self, rows: Tensor) -> "AnswerSheet":
        """The same for some of the inputs."""
        return replace(self, inputs=self.inputs[rows], owner=self.owner[rows])


@dataclass(frozen=True, eq=False)
class Search:
    """The search for the output changes R (clients × out × questions, a layer) that give everyone's answers."""

    model: nn.Module
    layers: Sequence[str]
    run: Split
    """The answer sheet's run through the model, split at the first layer."""
    edits: Sequence[Tensor]
    """Each layer's directions B."""
    pulls: Sequence[Pull]
    """How the clients' data pulls at each layer's outputs: changes are small where it pulls hard."""
    sheet: "AnswerSheet"
    steps: int
    """At most so many."""
    batch: int
    """About so many numbers of the first layer's output at a time."""
    spread: float
    """How far apart the logits of labels that are not wanted may lie."""
    tolerance: float = 0.02
    """What share of the margin may still be lacking in the end."""

    def within(self, brakes: Sequence["Brake"], margin: float) -> Iterator[tuple[slice, list[Tensor]]]:
        """The smallest changes that give the answers by the margin, for some clients at a time.

        Where a brake is hit, everybody's come anew, by a smaller margin, and likewise where the net's logits do not get
        as far apart as that; at a quarter they come as they are.
        """
        pieces, coarse = self._pieces(), self._coarse()
        least, done = margin / 4, 0
        near: list[Tensor] | None = None
        while done < len(pieces):
            wanted = self.sheet.answers[pieces[done]]
            # Most of the way is gone with one variant of each question; the others differ from it by a little.
            changes, found = coarse.smallest(wanted, margin, near)
            excess = _excess(changes, brakes)
            if not found or excess <= 1 or margin == least:
                # In a layer too small for its questions one variant may lead nowhere: then all start together.
                changes, found = self.smallest(wanted, margin, changes if found else None)
                excess = _excess(changes, brakes)
            if (found and excess <= 1) or margin == least:
                yield pieces[done], changes
                done, near = done + 1, None
                continue
            less = max(least, 0.8 * margin / excess if found else 0.7 * margin)
            near = [less / margin * change for change in changes] if found and done == 0 else None
            margin, done = less, 0

    def _pieces(self) -> list[slice]:
        count, size = len(self.sheet.answers), max(1, self.batch // self.run.load)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _coarse(self) -> "Search":
        """The same with one variant of each question."""
        owner = self.sheet.owner
        first = torch.cat([owner.new_ones(1), owner.diff()]).nonzero().flatten()
        return replace(self, run=self.run.some(first), sheet=self.sheet.some(first), tolerance=0.1)

    def smallest(self, wanted: Tensor, margin: float, near: Sequence[Tensor] | None = None) -> Found:
        """The smallest changes that give the wanted answers by the margin, from nothing or from what is near them.

        Each step moves every (client, question) along the gradient of its margin by just as much as it still lacks, as
        if the margin were linear; there is no step size to choose. Gives also whether there are such changes; if not,
        they come as near to it as they can. Labels that cannot be brought level are not in the way: one of them would
        take the margin from everybody.
        """
        clients, questions = wanted.shape
        if near is None:
            widths = [len(self.model.get_parameter(f"{layer}.weight")) for layer in self.layers]
            near = [torch.zeros(clients, width, questions, device=wanted.device) for width in widths]
        changes = best = list(near)
        owner = self.sheet.owner
        member = F.one_hot(owner, questions).float()
        labels = wanted[:, owner].flatten()
        asked = labels >= 0
        least = torch.full((clients,), torch.inf, device=wanted.device)
        before = torch.full((clients, questions), torch.inf, device=wanted.device)
        pace = torch.ones(clients, questions, device=wanted.device)
        reached, stalled, waited = math.inf, 0, 0
        for _ in range(self.steps):
            changes = [change.detach().requires_grad_() for change in changes]
            logits = self._answer(changes)
            short, others = _short(logits, labels, margin)
            # A variant counts by what it lacks, so that none comes or goes at a jump.
            uneven = (others[:, None] - logits - self.spread).clamp_min(0).square().sum(1)
            lacking = torch.where(asked, short.square() + UNEVEN * uneven, 0).view(clients, -1)
            steepest = torch.autograd.grad(lacking.sum() / 2, changes)
            changes, lacking = [change.detach() for change in changes], lacking.detach()
            missing = lacking @ member
            better = missing.sum(1) < least
            least = torch.where(better, missing.sum(1), least)
            best = _chosen(better, changes, best)
            if float(lacking.max().sqrt()) <= self.tolerance * margin:
                return best, True
            reached, stalled = (float(least.sum()), 0) if least.sum() < 0.98 * reached else (reached, stalled + 1)
            waited = waited + 1 if float(short.detach().max()) <= NEARLY * margin else 0
            if PATIENCE in (stalled, waited):
                break
            # Where a step made things worse, the margin bends or another question interfered: go on more slowly.
            pace = torch.where(missing > before, 0.5 * pace, (1.2 * pace).clamp_max(1))
            before = missing
            ways = [pull.solve(gradient) for pull, gradient in zip(self.pulls, steepest, strict=True)]
            slope = torch.stack([(g * way).sum(1) for g, way in zip(steepest, ways, strict=True)]).sum(0)
            length = pace * missing / slope.clamp_min(1e-12)
            moved = [
                torch.addcmul(change, way, length[:, None], value=-1) for change, way in zip(changes, ways, strict=True)
            ]
            # Where it went far astray, it begins again from the best so far, more slowly still.
            astray = missing.sum(1) > 2 * least
            pace[astray] *= 0.5
            changes = _chosen(astray, best, moved)
        with torch.no_grad():
            short, _ = _short(self._answer(best), labels, margin)
        return best, float(short.max()) <= NEARLY * margin

    def _answer(self, changes: Sequence[Tensor]) -> Tensor:
        """Everyone's logits for the whole sheet, one client after another."""
        handles = [
            self.model.get_submodule(layer).register_forward_hook(_changed_by(change, edit))
            for layer, change, edit in zip(self.layers[1:], changes[1:], self.edits[1:], strict=True)
        ]
        try:
            response = torch.einsum("n...q,coq->cn...o", self.run.layer_inputs @ self.edits[0], changes[0])
            return self.run.after((self.run.layer_outputs + response).flatten(0, 1))
        finally:
            for handle in handles:
                handle.remove()


def write_directions(inputs: Tensor, owner: Tensor, moment: Moment, ridge: float, residual: float) -> Tensor:
    """B (in × questions): the directions to write along, for a layer's inputs on all variants (N × … × in).

    Where a layer runs at many positions, neighbours are taken together, so that there are at most `COLUMNS` columns, or
    one for each variant.

    With Kᵀ M⁻¹ K = V s Vᵀ, what the edit does to a column is known in closed form for every λ, even for a column that
    is left out: coefficient over leverage. λ is the largest at which left-out columns still get at least 1 − `residual`
    of their change (in the mean square) or, in a layer too small for that, at which they come nearest to it.
    """
    inputs = _fewer_positions(inputs, max(1, COLUMNS // len(inputs)))
    columns = inputs.flatten(0, 1).T.float()
    member = F.one_hot(owner.repeat_interleave(inputs.shape[1])).float()
    # Inputs have any scale, and M has trace in: the columns are brought to unit mean square to go with it.
    scale = columns.square().mean().sqrt().clamp_min(1e-12)
    solved = moment.solve(columns / scale, ridge)
    gram = (columns / scale).T @ solved
    spectrum, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    spectrum = spectrum.clamp_min(0)
    rotated = vectors.T @ member
    dampings = [10 ** (power / 4) * float(spectrum.max().clamp_min(1e-12)) for power in range(8, -25, -1)]

    def shortfall(damping: float) -> float:
        leverage = vectors.square() @ (1 / (spectrum + damping))
        left_out = (vectors @ (rotated / (spectrum + damping)[:, None])) / leverage[:, None]
        return float(left_out.square().sum() / member.sum())

    shortfalls = [shortfall(damping) for damping in dampings]
    enough = max(residual**2, 1.1 * min(shortfalls))
    damping = next(d for d, s in zip(dampings, shortfalls, strict=True) if s <= enough)
    edit: Tensor = solved @ (vectors @ (rotated / (spectrum + damping)[:, None])) / scale
    # The same directions in other coordinates: a question's mean variant moves its own column by one, no other.
    response = (member / member.sum(0)).T @ columns.T @ edit
    edit = edit @ torch.linalg.pinv(response, rtol=1e-4)
    return edit


@dataclass(frozen=True, eq=False)
class Brake:
    """Says whether edits R Bᵀ of a layer are small enough beside what the layer does already.

    The clients' gradients run back through the edited layer into those before it, and what comes through the edit is
    noise to them. So its largest singular value is compared with the layer's own, both weighed by how the gradients
    pull at the layer's outputs. In a residual net most of a gradient goes around the layer, and an edit may be larger.
    """

    limit: float
    basis: Tensor
    triangle: Tensor
    """B = QR."""
    pull: Pull

    @classmethod
    def of(cls, weight: Tensor, edit: Tensor, pull: Pull, around: float) -> "Brake":
        basis, triangle = torch.linalg.qr(edit)
        return cls(BRAKE * math.hypot(1, around) * _gain(weight, pull), basis, triangle, pull)

    def excess(self, change: Tensor) -> float:
        """How many times larger than allowed the largest of all clients' changes is; at most 1 may pass."""
        edits = self.pull.root(change @ self.triangle.T)
        return float(torch.linalg.eigvalsh(edits.mT @ edits).max().clamp_min(0).sqrt()) / self.limit


def _short(logits: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """What each answer's margin lacks, and the largest logit of another label; nothing where nothing is asked (-1)."""
    column = labels.clamp_min(0)[:, None]
    others = logits.scatter(1, column, -torch.inf).amax(1)
    return torch.where(labels >= 0, (margin - (logits.gather(1, column)[:, 0] - others)).clamp_min(0), 0), others


def _chosen(who: Tensor, ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """The ones of some clients and the others of the rest; nothing is copied where it is all or none."""
    if bool(who.all()):
        return list(ones)
    if not bool(who.any()):
        return list(others)
    return [torch.where(who[:, None, None], one, other) for one, other in zip(ones, others, strict=True)]


def _excess(changes: Sequence[Tensor], brakes: Sequence[Brake]) -> float:
    return max(brake.excess(change) for brake, change in zip(brakes, changes, strict=True))


def _gain(matrix: Tensor, pull: Pull) -> float:
    """The largest singular value of a layer's matrix as the pull weighs it, to within a few per cent.

    By power iteration on a few vectors at once; the weighed matrix is never formed.
    """
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(matrix.shape[1], 8, generator=generator).to(matrix)
    for _ in range(3):
        answers = pull.root(pull.root(matrix @ F.normalize(vectors, dim=0)))
        vectors = (answers.T @ matrix).T
    return float(torch.linalg.matrix_norm(pull.root(matrix @ torch.linalg.qr(vectors).Q), ord=2))


def tell_apart(features: Tensor, moment: Moment, ridge: float, count: int) -> list[int]:
    """The `count` candidates that a layer tells apart best, where the clients' data is not.

    What it costs the task to write an answer for features k alone is 1 / (kᵀ M⁻¹ k), so candidates (candidates × in)
    are compared in that metric; each pick is the one with the largest part that the earlier picks do not explain (a
    pivoted Cholesky factorisation).
    """
    features = features.float()
    gram = features @ moment.solve(features.T, ridge)
    left = gram.diagonal().clone()
    factor = torch.zeros(len(features), count, device=features.device)
    picks: list[int] = []
    for step in range(count):
        best = int(left.argmax())
        picks.append(best)
        column = (gram[:, best] - factor @ factor[best]) / left[best].clamp_min(1e-12).sqrt()
        factor[:, step] = column
        left = (left - column.square()).clamp_min(0)
        left[picks] = -1
    return picks


class loaded:  # noqa: N801 - reads as a phrase: with loaded(model, fleet)
    """A scratch model with the fleet's base (or other weights) in it, in evaluation mode while it lasts."""

    def __init__(self, model: nn.Module, fleet: Fleet, weights: Tensor | None = None) -> None:
        self._model, self._fleet = model, fleet
        self._weights = fleet.base if weights is None else weights

    def __enter__(self) -> nn.Module:
        self._was_training = self._model.training
        self._model.eval()
        _load(self._model, self._fleet, self._weights)
        return self._model

    def __exit__(self, *_: object) -> None:
        self._model.train(self._was_training)


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@torch.no_grad()
def _load(model: nn.Module, fleet: Fleet, weights: Tensor) -> None:
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    for name, slot in fleet.layout.tensors.items():
        parameters[name].copy_(slot.of(weights))
    for name, tensor in fleet.buffers.items():
        state[name].copy_(tensor)


def _in_order(model: nn.Module, region: Places, layout: Layout) -> list[str]:
    """The tensors that have places in the region, in the region's order."""
    inside = region.tensors(layout)
    return [name for name in layout.tensors if name in inside]


def _with_values(pattern: Tensor, values: Tensor) -> Tensor:
    places = pattern.crow_indices(), pattern.col_indices()
    return torch.sparse_csr_tensor(*places, values, pattern.shape, check_invariants=False)


def _sampled(pattern: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """left @ right at the places of a pattern."""
    found: Tensor = torch.sparse.sampled_addmm(pattern, left, right, beta=0.0).values()
    return found


def _as_columns(inputs: Tensor) -> Tensor:
    """A layer's inputs as in × N: sparse products are several times faster on columns that lie side by side."""
    return inputs.reshape(-1, inputs.shape[-1]).T.contiguous()


def _fewer_positions(inputs: Tensor, count: int) -> Tensor:
    """A layer's inputs at no more than so many positions, each the mean of neighbours: inputs × positions × in."""
    inputs = inputs.flatten(1, -2) if inputs.dim() > 2 else inputs[:, None]
    if inputs.shape[1] <= count:
        return inputs
    return F.adaptive_avg_pool1d(inputs.transpose(1, 2), count).transpose(1, 2)


def _changed_by(change: Tensor, edit: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    """A hook that adds each client's own change to a layer's answer; the clients' inputs stand one after another."""

    def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        response = (rows_fed(layer, args[0]) @ edit).unflatten(0, (len(change), -1))
        moved = torch.einsum("cn...q,coq->cn...o", response, change).flatten(0, 1)
        if isinstance(layer, nn.Conv2d):
            moved = moved.transpose(1, 2)
        return output + moved.reshape(output.shape)

    return hook
