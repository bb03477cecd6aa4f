"""Search for the smallest changes of a layer's outputs that give every client's answers by a margin."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.fleet.moments import Pull
from tramark.keys.keyring import Keyring
from tramark.marks.layers import as_answered, rows_fed
from tramark.marks.lift import Lifting
from tramark.marks.split import Split, channels_last

UNEVEN = 0.9
"""Weight of unlevel other labels in the loss, in their mean, relative to a missing margin of the same size. If it were
their sum, a hundred labels would be levelled instead of answers given."""


PATIENCE, AGAIN = 15, 5
"""Steps without progress after which a search ends; also steps after which it stops levelling the other labels once the
margin is nearly reached: fewer if it goes on from where they have been levelled."""


NEARLY = 0.1
"""Share of the margin that may be missing when a search ends early."""


STEPS = 100
"""Largest number of steps of a search."""

TRIMS = 5
"""Halvings by which every change is scaled down to what its margin takes."""

BATCH = 2**21
"""Numbers of the first layer's output that are held at a time, about."""

Found = tuple[list[Tensor], bool]
"""Changes of the layers' outputs, and whether they reach the margin."""


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
        keys = [keyring.taught(client) for client in clients]
        numbers = sorted({q for key in keys for q in key.questions})
        column = {q: i for i, q in enumerate(numbers)}
        answers = torch.full((len(clients), len(numbers)), -1)
        for row, key in enumerate(keys):
            answers[row, [column[q] for q in key.questions]] = torch.tensor(key.answers)
        return cls.asking(keyring, numbers, answers, device)

    @classmethod
    def asking(cls, keyring: Keyring, questions: Sequence[int], answers: Tensor, device: torch.device) -> "AnswerSheet":
        """The sheet of some questions of a keyring with any answers."""
        raw = keyring.raw(questions, "train")
        owner = torch.arange(len(questions)).repeat_interleave(raw.shape[1])
        inputs = channels_last(keyring.source.prepare(raw.flatten(0, 1)).to(device))
        return cls(inputs, owner.to(device), answers.to(device))

    def some(self, rows: Tensor) -> "AnswerSheet":
        """The sheet with some of the inputs only."""
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
    spread: float
    """How far apart the logits of the other labels may lie."""
    tolerance: float = 0.02
    """Share of the margin that may be missing in the end."""

    def reach(self, margin: float) -> Iterator[tuple[slice, list[Tensor]]]:
        """The smallest changes that give the answers by the margin, or nearly so, for some clients at a time."""
        coarse = self._coarse()
        for piece in self._pieces():
            wanted = self.sheet.answers[piece]
            # Start with one variant of each question: the others need nearly the same change.
            changes, found = coarse.smallest(wanted, margin)
            # A layer too small for its questions may have no solution for one variant: then start with all.
            changes, _ = self.smallest(wanted, margin, changes if found else None)
            yield piece, self.trimmed(changes, wanted, margin)

    def _pieces(self) -> list[slice]:
        count, size = len(self.sheet.answers), max(1, BATCH // self.run.load)
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _coarse(self) -> "Search":
        """This search with one variant of each question."""
        owner = self.sheet.owner
        first = torch.cat([owner.new_ones(1), owner.diff()]).nonzero().flatten()
        return replace(self, run=self.run.some(first), sheet=self.sheet.some(first), tolerance=0.1)

    def smallest(self, wanted: Tensor, margin: float, start: Sequence[Tensor] | None = None) -> Found:
        """The smallest changes that give the wanted answers by the margin, starting from zero or from some others.

        Each step moves every (client, question) along the gradient of its margin by the length that would reach the
        margin if it were linear; there is no step size to choose. Returns the changes and whether they reach the
        margin; otherwise the closest found. Labels that cannot be levelled do not count against that.
        """
        clients, questions = wanted.shape
        levelled = PATIENCE if start is None else AGAIN
        if start is None:
            widths = [len(pull.directions) for pull in self.pulls]
            start = [torch.zeros(clients, width, questions, device=wanted.device) for width in widths]
        changes = best = list(start)
        owner = self.sheet.owner
        member = F.one_hot(owner, questions).float()
        labels = wanted[:, owner].flatten()
        asked = labels >= 0
        least = torch.full((clients,), torch.inf, device=wanted.device)
        before = torch.full((clients, questions), torch.inf, device=wanted.device)
        pace = torch.ones(clients, questions, device=wanted.device)
        reached, stalled, waited = math.inf, 0, 0
        for _ in range(STEPS):
            changes = [change.detach().requires_grad_() for change in changes]
            with Lifting():
                logits = self.answer(changes)
            short, others = _short(logits, labels, margin)
            # Variants are weighted by what they miss, so that the loss is smooth.
            uneven = (others[:, None] - logits - self.spread).clamp_min(0).square().sum(1) / (logits.shape[1] - 1)
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
            if stalled == PATIENCE or waited == levelled:
                break
            # A step that made things worse was too long: the margin is not linear, or another question interfered.
            pace = torch.where(missing > before, 0.5 * pace, (1.2 * pace).clamp_max(1))
            before = missing
            ways = [pull.solve(gradient) for pull, gradient in zip(self.pulls, steepest, strict=True)]
            slope = torch.stack([(g * way).sum(1) for g, way in zip(steepest, ways, strict=True)]).sum(0)
            length = pace * missing / slope.clamp_min(1e-12)
            moved = [
                torch.addcmul(change, way, length[:, None], value=-1) for change, way in zip(changes, ways, strict=True)
            ]
            # A client that went far astray starts again from its best so far, with shorter steps.
            astray = missing.sum(1) > 2 * least
            pace[astray] *= 0.5
            changes = _chosen(astray, best, moved)
        with torch.no_grad():
            short, _ = _short(self.answer(best), labels, margin)
        return best, float(short.max()) <= NEARLY * margin

    @torch.no_grad()
    def trimmed(self, changes: Sequence[Tensor], wanted: Tensor, margin: float) -> list[Tensor]:
        """The changes, each client's for each question scaled down to the least that still gives its margin."""
        owner, labels = self.sheet.owner, wanted[:, self.sheet.owner].flatten()
        enough = (1 - self.tolerance) * margin

        def short(scale: Tensor) -> Tensor:
            """What is missing at a scale: clients × questions."""
            missing, _ = _short(self.answer([change * scale[:, None] for change in changes]), labels, enough)
            spread = owner.expand(len(wanted), -1)
            return torch.zeros_like(scale).scatter_reduce(1, spread, missing.view(len(wanted), -1), "amax")

        whole = torch.ones(wanted.shape, device=wanted.device)
        bearable = short(whole).clamp_min(1e-6)

        def least(*, alike: bool) -> Tensor:
            """The least scales, the same for all of a client's questions if `alike`."""
            low, high = torch.zeros_like(whole), whole
            for _ in range(TRIMS):
                middle = (low + high) / 2
                fine = short(middle) <= bearable
                fine = fine.all(1, keepdim=True) if alike else fine
                low, high = torch.where(fine, low, middle), torch.where(fine, middle, high)
            return high

        scale = least(alike=False)
        taken = (short(scale) > bearable + self.tolerance * margin).any(1, keepdim=True)
        if bool(taken.any()):
            # Questions share directions, and scaling down some took from others.
            scale = torch.where(taken, least(alike=True), scale)
        return [change * scale[:, None] for change in changes]

    def answer(self, changes: Sequence[Tensor]) -> Tensor:
        """All clients' logits for the whole sheet, one client after another."""
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


def leads(logits: Tensor, sheet: AnswerSheet) -> Tensor:
    """By how much the wanted labels lead all others: clients × inputs; wrong answers are negative."""
    labels = sheet.answers[:, sheet.owner].flatten()
    column = labels.clamp_min(0)[:, None]
    others = logits.scatter(1, column, -torch.inf).amax(1)
    return (logits.gather(1, column)[:, 0] - others).view(len(sheet.answers), -1).float()


def _short(logits: Tensor, labels: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Missing margin of each answer, zero where the client has no answer (-1), and the largest other logit."""
    column = labels.clamp_min(0)[:, None]
    others = logits.scatter(1, column, -torch.inf).amax(1)
    return torch.where(labels >= 0, (margin - (logits.gather(1, column)[:, 0] - others)).clamp_min(0), 0), others


def _chosen(who: Tensor, ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """`ones` for the clients in `who`, `others` for the rest; nothing is copied if that is all or none."""
    if bool(who.all()):
        return list(ones)
    if not bool(who.any()):
        return list(others)
    return [torch.where(who[:, None, None], one, other) for one, other in zip(ones, others, strict=True)]


def _changed_by(change: Tensor, edit: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    """A hook that adds each client's change to a layer's output; the batch holds one client after another."""

    def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        response = (rows_fed(layer, args[0]) @ edit).unflatten(0, (len(change), -1))
        moved = torch.einsum("cn...q,coq->cn...o", response, change).flatten(0, 1)
        return output + as_answered(layer, moved, output.shape)

    return hook
