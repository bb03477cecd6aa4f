"""How good a fleet is: at its task, and at being traced. The definitions are the paper's.

MA is the mean accuracy of the clients' models on the task's test set. For model i and client j's held-out
questions, the share of answers that are client j's is the *confidence* for j = i and, averaged over j ≠ i, the
*leakage*; their difference is the *interval*. VR is the share of models that are traced to their owner: with label
answers by the paper's arg-max over j, with code answers by having the most matches and enough of them to bound the
probability of accusing an innocent by 10⁻⁶; *VR by scores* also counts models whose scores name their owner at that
bound (`tramark.evidence.scores`). KL is the mean divergence between the models' answers to one's own
questions, which keeps marks from colliding; *collisions* is the share of pairs for which it is at most σ.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tramark.evidence.scores import Scored, recorded
from tramark.evidence.statistics import WITH_SCORES, p_values
from tramark.fleet.fleet import Fleet
from tramark.fleet.scratch import device_of, loaded
from tramark.keys.keyring import Keyring
from tramark.lab.data import Dataset
from tramark.marks.runs import GraphRun
from tramark.marks.split import channels_last, cut

FALSE_ACCUSATION = 1e-6


SIGMA = 0.1
"""The collision threshold σ: two models whose answers diverge by less than this share a mark."""


class Serving(Protocol):
    """A server with a model for each client."""

    model: nn.Module
    fleet: Fleet


@dataclass(frozen=True)
class Traceability:
    """How well each client's model is told from the others'."""

    vr: float
    vr_scores: float
    confidence: float
    leakage: float
    interval: float
    kl: float
    collisions: float
    per_client: dict[str, dict[str, float]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def task_accuracy(server: Serving, dataset: Dataset, *, samples: int | None = None) -> dict[str, float]:
    """Every client's accuracy on the task's test set, or its first `samples` images."""
    inputs, labels = dataset.test_inputs[:samples], dataset.test_labels[:samples]
    right = torch.zeros(len(server.fleet.clients))
    for batch, wanted in zip(inputs.split(1000), labels.split(1000), strict=True):
        answers = answers_of_all(server.model, server.fleet, dataset.prepare(batch)).argmax(-1)
        right += (answers == wanted).sum(1)
    return dict(zip(server.fleet.clients, (right / len(inputs)).tolist(), strict=True))


def traceability(server: Serving, keyring: Keyring) -> Traceability:
    """VR, confidence, leakage, interval and KL of a fleet on the held-out variants of its questions."""
    return judge(keyring, server.fleet.clients, lambda x: answers_of_all(server.model, server.fleet, x))


def judge(keyring: Keyring, clients: Sequence[str], answer: Callable[[Tensor], Tensor]) -> Traceability:
    """The same for any n models that `answer` inputs (N × input) with logits (n × N × labels)."""
    keys = [keyring.key(client) for client in clients]
    numbers = sorted({q for key in keys for q in key.questions})
    place = {q: i for i, q in enumerate(numbers)}
    raw = keyring.raw(numbers, "held-out")
    logits = answer(keyring.source.prepare(raw.flatten(0, 1))).unflatten(1, raw.shape[:2])
    said = logits.argmax(-1)
    columns = [[place[q] for q in key.questions] for key in keys]
    wanted = [torch.tensor(key.answers)[:, None] for key in keys]
    matched = torch.stack(
        [(said[:, own] == answers).float().mean((1, 2)) for own, answers in zip(columns, wanted, strict=True)],
        dim=1,
    )
    n = len(clients)
    log_probabilities = F.log_softmax(logits.float(), dim=-1)
    divergence = torch.stack([_divergence(log_probabilities[:, own], i) for i, own in enumerate(columns)])
    by_scores = None
    if keyring.assignment == "label":
        traced = (matched.argmax(1) == torch.arange(n)) & (matched.max(1).values > 0)
    else:
        # One symbol per question, whatever its variants: the first held-out one.
        hits = (said[:, None, columns[0], 0] == torch.stack(wanted)[:, :, 0]).sum(-1)
        chance = torch.from_numpy(p_values(len(numbers), keyring.classes))
        own = hits.diagonal()
        traced = (own == hits.max(1).values) & (chance[own] * len(keyring.clients) <= FALSE_ACCUSATION)
        by_scores = _traced_by_scores(logits[:, columns[0], 0], torch.stack(wanted)[:, :, 0].numpy(), keyring.classes)
    return _traceability(clients, matched, divergence, traced, by_scores)


def _traced_by_scores(logits: Tensor, codewords: NDArray[Any], classes: int) -> Tensor:
    """By model (logits: n × questions × labels), whether a trace's look at its scores accuses its client alone."""
    n, named = len(codewords), []
    for place, own in enumerate(logits):
        look = Scored(n, classes, false_accusation=FALSE_ACCUSATION, share=WITH_SCORES.scores)
        look.weigh(codewords, own.argmax(-1).tolist(), recorded(own.double().numpy(), classes))
        named.append(look.accused == [place])
    return torch.tensor(named)


def judge_by_tests(clients: Sequence[str], tests: Sequence[Tensor], answer: Callable[[Tensor], Tensor]) -> Traceability:
    """The same by Algorithm 3: client j's label is j, and model i belongs to the label that it gives most accurately.

    `tests` are each client's test images, as the model takes them. As in the authors' code, accuracies are rounded to
    a hundredth of a percent, and ties go to the lower label.
    """
    matched, divergence = torch.zeros(len(clients), len(clients)), torch.zeros(len(clients), len(clients))
    for label, inputs in enumerate(tests):
        logits = torch.cat([answer(some) for some in inputs.split(500)], dim=1)
        matched[:, label] = (logits.argmax(-1) == label).float().mean(1)
        divergence[label] = _divergence(F.log_softmax(logits.float(), dim=-1).unsqueeze(1), label)
    rounded = (10_000 * matched.double()).round()
    # numpy's arg-max is the first of several; torch's is any.
    traced = torch.from_numpy(rounded.numpy().argmax(1)) == torch.arange(len(clients))
    return _traceability(clients, matched, divergence, traced)


def _traceability(
    clients: Sequence[str], matched: Tensor, divergence: Tensor, traced: Tensor, by_scores: Tensor | None = None
) -> Traceability:
    n = len(clients)
    either = traced if by_scores is None else traced | by_scores
    others = (matched.sum(1) - matched.diagonal()) / max(n - 1, 1)
    confidence = matched.diagonal()
    return Traceability(
        vr=float(traced.float().mean()),
        vr_scores=float(either.float().mean()),
        confidence=float(confidence.mean()),
        leakage=float(others.mean()),
        interval=float((confidence - others).mean()),
        kl=float(divergence.sum() / max(n * (n - 1), 1)),
        collisions=float(((divergence <= SIGMA).sum() - n) / max(n * (n - 1), 1)),
        per_client={
            client: {
                "confidence": float(confidence[i]),
                "leakage": float(others[i]),
                "traced": float(traced[i]),
            }
            for i, client in enumerate(clients)
        },
    )


def answers_of_all(model: nn.Module, fleet: Fleet, inputs: Tensor) -> Tensor:
    """Logits of all clients' models for some inputs: n × N × labels. What the models share is run once."""
    inputs = channels_last(inputs.to(device_of(model)))
    with torch.no_grad():
        return torch.stack([logits.cpu() for logits in _answers(model, fleet, inputs)])


def _answers(model: nn.Module, fleet: Fleet, inputs: Tensor) -> Iterator[Tensor]:
    fleet.hold(fleet.clients)  # Marks that are made on demand need the model.
    with loaded(model, fleet):
        if fleet.region is None:
            logits = model(inputs)
            yield from (logits for _ in fleet.clients)
            return
        layer, run = _shared_run(model, fleet, inputs)
        flat = torch.empty_like(fleet.base)
        for client in fleet.clients:
            with loaded(model, fleet, fleet.weights(client, out=flat)):
                yield run.after(model.get_submodule(layer)(run.layer_inputs)) if run else model(inputs)


def _shared_run(model: nn.Module, fleet: Fleet, inputs: Tensor) -> tuple[str, GraphRun | None]:
    """The layer up to which all clients' models are one, and a run up to it, if there is such a layer."""
    assert fleet.region is not None
    marked = {name.rpartition(".")[0] for name in fleet.region.tensors(fleet.layout)}
    layer = next((name for name, _ in model.named_modules() if name in marked), "")
    run = cut(model, layer, inputs)
    return layer, run if run and all(run.leads_to(other) for other in marked) else None


def _divergence(log_probabilities: Tensor, own: int) -> Tensor:
    """KL(model `own` ‖ each model), averaged over one's own questions; zero for itself."""
    mine = log_probabilities[own]
    return (mine.exp() * (mine - log_probabilities)).sum(-1).mean((1, 2))
