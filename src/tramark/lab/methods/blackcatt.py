"""BlackCATT: every client's whole model is taught a codeword of a code that resists collusion.

**Code.** All clients share m = 250 triggers, images of uniform noise. For trigger j, biases p_j over the q classes are
drawn, τ + (1 − qτ)·Dirichlet(½, …, ½), and client i's label c_ij is y with probability p_jy. (Squares of normal
numbers, divided by their sum, are a Dirichlet of halves.) A suspect that answers y_j gives client i the score

    S_i = Σ_j g_ij ,   g_ij = √((1 − p)/p) if c_ij = y_j  and  −√(p/(1 − p)) if not,   with p = p_j(y_j)

(the symmetric score of Škorić, Katzenbeisser and Celik). For a client that has nothing to do with the suspect, c_ij is
y_j with probability p, so that g has mean p·√((1−p)/p) − (1−p)·√(p/(1−p)) = 0 and variance (1 − p) + p = 1, whatever
the answers; S_i has mean 0 and variance m. Since g < 1/√τ, Bernstein's inequality says

    P(S_i ≥ Z) ≤ exp(−½ Z² / (m + Z/(3√τ))) ,

which is ε at Z = b + √(b² + 2 m ln(1/ε)) with b = ln(1/ε)/(3√τ). Colluders who give, question by question, a label
that one of them was to give share a score that grows with m, so that one of them is above Z if m is long enough.

**Embedding.** Each round all models take up the clients' mean update, and then SGD steps on

    mean_j [ ℓ(θ_i; x_j, c_ij) + λ Σ_k min(ℓ(½(θ_i + θ_k); x_j, c_ij), ℓ(½(θ_i + θ_k); x_j, c_kj)) ]

over random peers k, where ℓ is the cross-entropy: the average of two models shall give one of their labels, and not a
third. (As in the released code, the gradient at ½(θ_i + θ_k) is taken without the ½ of the chain rule.) BlackCATT+FR,
our default, adds the KL from the average model to θ_i on auxiliary inputs. Batch norm stays as it is. Then the triggers
move by signed gradient steps of one grey level on the same loss of all clients, 64 levels at most in all. Marks take
n × d numbers: no two clients' models have a weight in common.

**Departures.** The source makes one step of 1e-4 on all triggers in each of 1500 rounds, with λ = 0.1, 0.8 times the
KL, and no steps of the triggers beforehand (steps=1 rate=1e-4 batch=null enough=null peers=5 collusion=0.1
regularisation=0.8 trigger_start=0); a federation of a dozen rounds would stay unmarked. So by default a round has 40
steps on batches of triggers, each with one peer of weight 0.5 instead of five of 0.1, and a model that gives nine
labels in ten is left alone. White noise looks all alike to a net that has not been trained on it for long: before the
first marks, the triggers are led to where the base answers by their biases. Auxiliary inputs are synthetic questions
instead of 500 images of another data set: none is needed. The source compares scores with Z after each trigger, with ε
= 1e-6 for every look and every client, and accuses the highest once it is above; neither the looks nor the number of
clients are corrected for. Here there is one look, at all triggers, everybody above Z is accused, and `correction`
divides ε by the number of clients.

**A warning.** The bound speaks of suspects that know nothing of the codewords. Triggers that were moved to suit the
clients' models do know: they lead unmarked models, too, towards what most clients were to answer, and all clients'
scores rise together, the more the fewer clients there are. The steps before the first marks look at the biases alone,
and do no such harm.

E. Rodríguez-Lois et al.: BlackCATT: Black-box Collusion Aware Traitor Tracing in Federated Learning. arXiv 2602.12138,
2026.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from tramark.errors import CheckpointError, SettingError
from tramark.fleet.aggregation import Aggregation
from tramark.fleet.fleet import Fleet
from tramark.fleet.region import Places
from tramark.fleet.scratch import device_of, loaded
from tramark.keys import streams
from tramark.lab.methods.base import Declared, Finding, Scene
from tramark.lab.methods.watermarked import Watermarked
from tramark.marks.split import channels_last
from tramark.suspects.base import Suspect


@dataclass(frozen=True)
class Recipe:
    """The parameters of BlackCATT.

    Parameters
    ----------
    questions : the number m of triggers, the length of a codeword.
    steps, rate, momentum : SGD steps of each client's model in a round, and how they are made.
    batch : triggers a step; None takes all at once.
    enough : the share of its labels at which a model is taught no more in a round; None teaches it in any case.
    peers, collusion : with how many random peers a model is averaged at each step, and the weight λ of each of them.
    regularisation : the weight of the KL to the average model; 0 is BlackCATT without FR.
    auxiliary : on how many synthetic inputs.
    trigger_start : signed steps of the triggers before the first marks, of four grey levels each.
    trigger_steps : signed steps of the triggers in each round after that, of one grey level each.
    trigger_reach : how far a trigger's pixel may move in all, in grey levels.
    cutoff : the least bias τ; 0.1/q unless told.
    false_accusation : ε, for each client; with `correction` for all of them together.
    """

    questions: int = 250
    steps: int = 40
    rate: float = 0.01
    momentum: float = 0.9
    batch: int | None = 50
    enough: float | None = 0.9
    peers: int = 1
    collusion: float = 0.5
    regularisation: float = 2.0
    auxiliary: int = 500
    trigger_start: int = 20
    trigger_steps: int = 1
    trigger_reach: int = 64
    cutoff: float | None = None
    false_accusation: float = 1e-6
    correction: bool = False

    def __post_init__(self) -> None:
        if min(self.questions, self.steps, self.auxiliary, 1 if self.batch is None else self.batch) < 1:
            raise SettingError(f"questions, steps, batch and auxiliary must be at least 1: {self}")
        if min(self.peers, self.trigger_start, self.trigger_steps, self.trigger_reach) < 0:
            raise SettingError(f"peers and the steps and reach of triggers cannot be negative: {self}")
        if self.enough is not None and not 0 < self.enough <= 1:
            raise SettingError(f"enough is a share of the labels, above 0 and at most 1: {self}")
        if not (0 < self.rate < math.inf and 0 <= self.momentum < 1):
            raise SettingError(f"rate must be positive, and momentum lie in [0, 1): {self}")
        if not (0 <= self.collusion < math.inf and 0 <= self.regularisation < math.inf):
            raise SettingError(f"collusion and regularisation are weights and cannot be negative: {self}")
        if not 0 < self.false_accusation < 1:
            raise SettingError(f"false_accusation is a probability, such as 1e-6, not {self.false_accusation}")


START, LEVEL = 4, 1
"""How many grey levels a trigger's pixel moves in one step: before the first marks, and after."""


class BlackCATT(Watermarked):
    """A server that teaches every client's model its own codeword, all weights taking part.

    >>> from tramark.keys.pictures import Patterns
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> scene = Scene(("alice", "bob"), classes=10, source=Patterns((1, 8, 8)), secret=b"s" * 32)
    >>> server = BlackCATT.make(model, scene)
    >>> server.collect(dict(server.dispatch())).used
    ('alice', 'bob')
    >>> server.verify(model).accused    # it bears nobody's codeword
    ()

    Parameters
    ----------
    model, scene : as for all. The warm-up is rounds of plain FedAvg before the first marks. Of the scene's questions,
        only how the model is fed is used, and they serve as auxiliary inputs.
    recipe : the parameters of a `Recipe`.
    """

    declared: ClassVar[Declared] = Declared("black-box", resists_collusion=True)

    def __init__(self, model: nn.Module, scene: Scene, **recipe: Any) -> None:
        classes = scene.classes
        self.recipe = Recipe(**recipe)
        self.cutoff = 0.1 / classes if self.recipe.cutoff is None else self.recipe.cutoff
        if classes < 2:
            raise SettingError(f"codewords need at least two classes, not {classes}")
        if not 0 < self.cutoff < 1 / classes:
            raise SettingError(f"the least bias must lie between 0 and 1/{classes}, not {self.cutoff}")
        super().__init__(model, scene)
        self._secret = scene.secret
        self.biases = biases(scene.secret, self.recipe.questions, classes, self.cutoff)
        self.codewords = torch.stack([codeword(scene.secret, client, self.biases) for client in self.fleet.clients])
        self.raw = self._noise()
        self._trained = trained_weights(self.model, self.fleet)

    @property
    def marked(self) -> bool:
        return self.fleet.region is not None

    def dispatch(self, clients: Iterable[str] | None = None) -> Mapping[str, dict[str, Tensor]]:
        if not self.marked:
            # The first models, or those that follow another run's warm-up.
            self._mark()
        return super().dispatch(clients)

    def _finish(self, aggregation: Aggregation) -> None:
        """Let everybody's model take up the mean update, and keep its mark.

        What sets a model apart from the base, its mark, is kept from round to round, as in the source. A model that was
        made of the base anew would have to learn its whole codeword in a single round, and one that took up its own
        client's update instead of the mean would leave the federation.
        """
        fleet = self.fleet
        base, marks = fleet.base.clone(), fleet.marks.clone()
        super()._finish(aggregation)
        if fleet.region is not None:
            fleet.marks = marks + fleet.region.take(fleet.base - base)

    def _mark(self) -> None:
        """After the warm-up, teach everybody's model its codeword, then move the triggers."""
        if self.round < self.scene.warmup:
            return
        fleet = self.fleet
        with loaded(self.model, fleet):
            if fleet.region is None:
                slots = [fleet.layout.slots[name] for name in self._trained]
                region = Places(torch.cat([torch.arange(slot.start, slot.stop) for slot in slots]))
                fleet.settle(region, region.take(fleet.base).repeat(len(fleet.clients), 1))
                self._start_triggers()
            self._teach()
            self._move_triggers()

    def verify(self, suspect: nn.Module | Suspect) -> Finding:
        """Ask all triggers once and accuse everybody whose score is at the threshold or above.

        It is conclusive if whoever was to give exactly these answers would have been accused.
        """
        answers = self._ask(suspect, self.raw)
        found = scores(self.codewords, answers, self.biases)
        innocents = len(self.codewords) if self.recipe.correction else 1
        answered = int(_answered(answers, self.biases).sum())
        limit = threshold(answered, self.cutoff, self.recipe.false_accusation / innocents)
        accused = tuple(c for c, s in zip(self.fleet.clients, found.tolist(), strict=True) if s >= limit)
        return Finding(
            accused=accused,
            scores=dict(zip(self.fleet.clients, found.tolist(), strict=True)),
            queries=len(answers),
            owned=bool(accused),
            conclusive=bool(accused) or float(scores(answers[None], answers, self.biases)) >= limit,
        )

    def confidence(self, suspect: nn.Module | Suspect, client: str) -> float:
        """The share of one's own labels that it gives to the triggers."""
        own = self.codewords[self.fleet.clients.index(client)]
        return float((self._ask(suspect, self.raw) == own).float().mean())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"triggers": {"raw": self.raw.clone()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raw = state["triggers"]["raw"]
        if raw.shape != self.raw.shape or raw.dtype != self.raw.dtype:
            raise CheckpointError(
                f"{tuple(raw.shape)} triggers of {raw.dtype} for a server with {tuple(self.raw.shape)}"
            )
        super().load_state_dict(state)
        self.raw = raw.clone()

    def _noise(self) -> Tensor:
        """The triggers as they begin: uniform bytes for images, else what the source of questions draws at random."""
        count = self.recipe.questions
        drawn = self.scene.source.render(self._secret, 0, range(1))
        if drawn.dtype == torch.uint8:
            return streams.octets(self._secret, "blackcatt", "noise", shape=(count, *self.scene.source.shape))
        return torch.cat([self.scene.source.render(self._secret, q, range(1)) for q in range(count)])

    def _auxiliary(self) -> Tensor:
        """Synthetic inputs on which behaviour is kept: ten variants of each of so many other questions."""
        first, wanted = self.recipe.questions, self.recipe.auxiliary
        questions = range(first, first + math.ceil(wanted / 10))
        return torch.cat([self.scene.source.render(self._secret, q, range(10)) for q in questions])[:wanted]

    def _inputs(self, raw: Tensor) -> Tensor:
        return channels_last(self.scene.source.prepare(raw.to(device_of(self.model))))

    def _teach(self) -> None:
        recipe, fleet = self.recipe, self.fleet
        inputs, auxiliary = self._inputs(self.raw), self._inputs(self._auxiliary())
        with torch.no_grad():
            usual = F.log_softmax(self._run(self._average(range(len(fleet.clients))), auxiliary), dim=1)
        for row, client in enumerate(fleet.clients):
            speed = torch.zeros_like(fleet.marks[row])
            some = self._batches(len(inputs), "batches", client)
            others = self._batches(len(auxiliary), "auxiliary", client)
            for step in range(recipe.steps):
                if recipe.enough is not None and step % math.ceil(len(inputs) / (recipe.batch or len(inputs))) == 0:
                    with torch.no_grad():
                        said = self._run(fleet.marks[row].to(inputs.device), inputs).argmax(1).cpu()
                    if float((said == self.codewords[row]).float().mean()) >= recipe.enough:
                        break
                batch, beside = next(some), next(others)
                mark = self._average([row])
                loss = self._loss(mark, inputs[batch], [row], batch)
                if recipe.regularisation:
                    now = F.log_softmax(self._run(mark, auxiliary[beside]), dim=1)
                    kept = F.kl_div(now, usual[beside], log_target=True, reduction="batchmean")
                    loss = loss + recipe.regularisation * kept
                slope = torch.autograd.grad(loss, mark)[0]
                for peer in self._peers(client, step):
                    average = self._average([row, peer])
                    loss = recipe.collusion * self._loss(average, inputs[batch], [row, peer], batch)
                    slope += torch.autograd.grad(loss, average)[0]
                speed = recipe.momentum * speed + slope.to(speed)
                fleet.marks[row] -= recipe.rate * speed
        if not torch.isfinite(fleet.marks).all():
            raise SettingError(f"the marks diverged: take a smaller rate than {recipe.rate}")

    def _start_triggers(self) -> None:
        """Lead the triggers to where the base answers by their biases, so that every likely label is within reach.

        Of codewords it knows nothing, so that an innocent client's score keeps its mean of zero.
        """
        wanted = self.biases.float().to(device_of(self.model))
        base = self._average([0]).detach()
        for _ in range(self.recipe.trigger_start if self._movable else 0):
            moving = self.raw.float().to(wanted.device).requires_grad_()
            loss = F.cross_entropy(self._run(base, self._inputs(moving)), wanted)
            self._step_triggers(torch.autograd.grad(loss, moving)[0], START)

    def _move_triggers(self) -> None:
        """Lead the triggers to where all clients' models and their averages do better, as the source does."""
        everything = torch.arange(self.recipe.questions)
        for _ in range(self.recipe.trigger_steps if self._movable else 0):
            moving = self.raw.float().to(device_of(self.model)).requires_grad_()
            slope = torch.zeros_like(moving)
            for row, client in enumerate(self.fleet.clients):
                pairs = [(self.recipe.collusion, [row, peer]) for peer in self._peers(client, self.recipe.steps)]
                for weight, owners in [(1.0, [row]), *pairs]:
                    average = self._average(owners).detach()
                    loss = weight * self._loss(average, self._inputs(moving), owners, everything)
                    slope += torch.autograd.grad(loss, moving)[0]
            self._step_triggers(slope, LEVEL)

    @property
    def _movable(self) -> bool:
        return self.raw.dtype in (torch.uint8, torch.float32)

    def _step_triggers(self, slope: Tensor, levels: int) -> None:
        noise, reach = self._noise().float(), self.recipe.trigger_reach
        low, high = (0.0, 255.0) if self.raw.dtype == torch.uint8 else (float(noise.min()), float(noise.max()))
        level = (high - low) / 255
        moved = self.raw.float() - levels * level * slope.sign().cpu()
        self.raw = moved.clamp(noise - reach * level, noise + reach * level).clamp(low, high).to(self.raw.dtype)

    def _peers(self, client: str, step: int) -> list[int]:
        others = [row for row, other in enumerate(self.fleet.clients) if other != client]
        context = ("blackcatt", "peers", self.round, step, client)
        order = streams.permutation(self._secret, *context, count=len(others)).tolist()
        return [others[i] for i in order[: self.recipe.peers]] if self.recipe.collusion else []

    def _batches(self, count: int, what: str, client: str) -> Iterator[Tensor]:
        """Some of so many inputs at a time, without end: all of them in random order, then in another one."""
        for turn in itertools.count():
            order = streams.permutation(self._secret, "blackcatt", what, self.round, turn, client, count=count)
            yield from order.split(self.recipe.batch or count)

    def _average(self, rows: Sequence[int]) -> Tensor:
        """The average of some clients' marks, ready to be differentiated by."""
        return self.fleet.marks[list(rows)].mean(0).to(device_of(self.model)).requires_grad_()

    def _run(self, mark: Tensor, inputs: Tensor) -> Tensor:
        """What the model with this mark in it says to some inputs; it must have been loaded with the base."""
        slots = [self.fleet.layout.slots[name] for name in self._trained]
        pieces = mark.split([slot.shape.numel() for slot in slots])
        weights = {
            name: piece.view(slot.shape).to(slot.dtype)
            for name, piece, slot in zip(self._trained, pieces, slots, strict=True)
        }
        logits: Tensor = torch.func.functional_call(self.model, weights, (inputs,))
        return logits

    def _loss(self, mark: Tensor, inputs: Tensor, owners: Sequence[int], which: Tensor) -> Tensor:
        """The mean cross-entropy with, for each trigger, whichever of the owners' labels is nearest."""
        logits = self._run(mark, inputs)
        labels = self.codewords[list(owners)][:, which].to(logits.device)
        return torch.stack([F.cross_entropy(logits, wanted, reduction="none") for wanted in labels]).amin(0).mean()


def trained_weights(model: nn.Module, fleet: Fleet) -> list[str]:
    """The names of the tensors that embedding moves: all weights but those of batch norm, as in the source."""
    norms = {
        f"{name}.{own}".removeprefix(".")
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for own, _ in module.named_parameters()
    }
    names = [name for name in fleet.layout.tensors if name not in norms]
    if not names:
        raise SettingError(f"{type(model).__name__} has no weights to train but those of batch norm")
    return names


def biases(secret: bytes, questions: int, classes: int, cutoff: float) -> Tensor:
    """p_j for each question: questions × classes, each row summing to one, none below the cutoff.

    >>> biases(b"s" * 32, questions=250, classes=10, cutoff=0.01).shape
    torch.Size([250, 10])
    """
    radius, angle = streams.fractions(secret, "blackcatt", "biases", shape=(2, questions, classes)).double()
    squares = -torch.log1p(-radius) * torch.cos(2 * math.pi * angle).square()
    return cutoff + (1 - classes * cutoff) * squares / squares.sum(1, keepdim=True)


def codeword(secret: bytes, client: str, biases: Tensor) -> Tensor:
    """A client's labels, each drawn by its question's biases; nobody else's codeword has a part in it."""
    chance = streams.fractions(secret, "blackcatt", "codeword", client, shape=(len(biases), 1)).double()
    return torch.searchsorted(biases.cumsum(1), chance, right=True)[:, 0].clamp_max(biases.shape[1] - 1)


def scores(codewords: Tensor, answers: Tensor, biases: Tensor) -> Tensor:
    """Everybody's symmetric Tardos score S_i for a suspect's answers; a question without a valid answer counts nothing.

    >>> scores(torch.tensor([[0], [1]]), torch.tensor([0]), torch.tensor([[0.2, 0.8]], dtype=torch.float64))
    tensor([ 2.0000, -0.5000], dtype=torch.float64)
    """
    valid = _answered(answers, biases)
    p = biases.gather(1, answers.clamp(0, biases.shape[1] - 1)[:, None])[:, 0]
    each = torch.where(codewords == answers, ((1 - p) / p).sqrt(), -(p / (1 - p)).sqrt())
    return torch.where(valid, each, 0).sum(1)


def threshold(answered: int, cutoff: float, false_accusation: float) -> float:
    """The score Z that an innocent client reaches with at most this probability, by Bernstein's inequality.

    >>> round(threshold(250, 0.01, 1e-6), 1)
    141.1
    """
    nats = -math.log(false_accusation)
    half = nats / (3 * math.sqrt(cutoff))
    return half + math.sqrt(half * half + 2 * answered * nats)


def _answered(answers: Tensor, biases: Tensor) -> Tensor:
    return (answers >= 0) & (answers < biases.shape[1])
