"""Traces from end to end: the right verdict, few queries, nothing asked twice, no verdict if it breaks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import traces
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from traces import Oracle, leaked_by, one_thread

from tramark.errors import BudgetSpent, SuspectError, SuspectUnavailable
from tramark.evidence.looks import PROBE
from tramark.evidence.premise import Premise
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import WafflePatterns
from tramark.suspects.base import Answers
from tramark.tracing.interview import Step
from tramark.tracing.trace import trace
from tramark.tracing.verdict import Verdict

SHAPE = (1, 16, 16)


def ring(clients: int = 10, classes: int = 10, questions: int | None = None) -> Keyring:
    names = [f"client {i}" for i in range(clients)]
    return traces.ring(clients=names, classes=classes, questions=questions, pool=None, secret=b"s" * 32)


def noisy(keyring: Keyring, client: str, share: float, seed: int) -> Oracle:
    return leaked_by(keyring, client, noise=share, seed=seed)


def test_every_client_is_named_with_eight_queries() -> None:
    keyring = ring()
    for client in keyring.clients:
        suspect = leaked_by(keyring, client)
        verdict = trace(suspect, keyring)
        assert (verdict.finding, verdict.clients) == ("client", (client,))
        assert verdict.queries == len(suspect.asked) <= 8
        assert verdict.e_values[client] >= 10 / 1e-6 > max(verdict.e_values[c] for c in keyring.clients if c != client)
        assert verdict.matches[client] == verdict.answered == 8
        assert verdict.p_values[client] == pytest.approx(1e-8)


def test_a_client_that_left_is_still_named() -> None:
    keyring = ring().leave("client 3")
    assert trace(leaked_by(keyring, "client 3"), keyring).clients == ("client 3",)


def test_one_answer_of_five_at_random_costs_a_few_queries_more() -> None:
    keyring = ring()
    verdicts = [trace(noisy(keyring, f"client {i % 10}", 0.2, i), keyring) for i in range(200)]
    assert [v.clients for v in verdicts] == [(f"client {i % 10}",) for i in range(200)]
    assert np.median([v.queries for v in verdicts]) <= 16
    assert max(v.queries for v in verdicts) <= 48


@pytest.mark.parametrize(("clients", "classes"), [(1000, 10), (3, 2), (50, 100), (1, 10)])
def test_any_number_of_clients_and_classes(clients: int, classes: int) -> None:
    keyring = ring(clients, classes)
    leaker = keyring.clients[clients // 2]
    verdict = trace(leaked_by(keyring, leaker), keyring)
    assert verdict.clients == (leaker,)
    assert verdict.queries <= (64 if classes > 2 else 72)


def test_the_order_of_clients_is_no_evidence() -> None:
    keyring = ring()
    shuffled = replace(keyring, clients=keyring.clients[::-1])
    one, other = (trace(noisy(keyring, "client 2", 0.5, 1), k) for k in (keyring, shuffled))
    assert one.e_values == other.e_values
    assert one.clients == other.clients


def test_unmarked_suspects_are_nobodys() -> None:
    keyring, rng = ring(questions=56), np.random.default_rng(0)
    suspects = [Oracle(keyring, lambda q, v, c=c: c) for c in range(10)]  # type: ignore[misc]
    suspects += [Oracle(keyring, lambda q, v: int(rng.integers(10))) for _ in range(40)]
    verdicts = [trace(suspect, keyring) for suspect in suspects]
    assert {v.finding for v in verdicts} == {"nobody"}
    assert all(v.power is not None and v.power >= 0.95 for v in verdicts)
    # Fewer questions would not have convicted a leaker with a faint mark for sure, whatever the answers are.
    assert trace(Oracle(few := ring(questions=40), lambda q, v: 0), few).finding == "inconclusive"


def test_an_unmarked_suspect_clears_nobody_if_no_marks_were_issued() -> None:
    keyring = ring(questions=56)
    unmarked, none = Oracle(keyring, lambda q, v: 0), Premise(issued=False)
    assert trace(unmarked, keyring).finding == "nobody"
    verdict = trace(unmarked, keyring, premise=none)
    assert (verdict.finding, verdict.clients, verdict.premise) == ("inconclusive", (), none)
    assert trace(leaked_by(keyring, "client 3"), keyring, premise=none).clients == ("client 3",)
    labels = traces.ring(classes=20, assignment="label", held_out_variants=2)
    silent = nn.Sequential(nn.Flatten(), head := nn.Linear(6, 20))
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.arange(20.0))
    assert trace(silent, labels, references=[silent]).finding == "nobody"
    assert trace(silent, labels, references=[silent], premise=none).finding == "inconclusive"


def test_a_low_survival_lowers_the_power() -> None:
    keyring, powers = ring(questions=64), []
    for surviving in (0.5, 0.3, 0.15, 0.0):
        verdict = trace(
            Oracle(keyring, lambda q, v: 0),
            keyring,
            exhaustive=True,
            premise=Premise(surviving=surviving, measured=True),
        )
        assert verdict.power is not None
        assert (verdict.finding == "nobody") == (verdict.power >= 0.95)
        powers.append(verdict.power)
    assert powers == sorted(powers, reverse=True)
    assert powers[0] > 0.99
    assert powers[-2] < 0.95


def test_a_leaker_with_a_faint_mark_is_rarely_cleared() -> None:
    """What the power promises, for a mark that survives as rarely as was measured."""
    keyring, known = ring(questions=64), Premise(surviving=0.3, measured=True)
    verdicts = [trace(noisy(keyring, "client 2", 0.7, seed), keyring, premise=known) for seed in range(200)]
    assert sum(verdict.finding == "nobody" for verdict in verdicts) <= 10
    assert all(set(verdict.clients) <= {"client 2"} for verdict in verdicts)


def test_a_small_budget_is_inconclusive() -> None:
    keyring = ring()
    verdict = trace(leaked_by(keyring, "client 0"), keyring, budget=5)
    assert (verdict.finding, verdict.clients, verdict.queries) == ("inconclusive", (), 5)


def test_a_suspect_that_never_answers_is_inconclusive() -> None:
    verdict = trace(Oracle(keyring := ring(), lambda q, v: NO_ANSWER), keyring)
    assert (verdict.finding, verdict.answered, verdict.power) == ("inconclusive", 0, 0.0)


def test_refusals_and_strange_labels_only_cost_queries() -> None:
    keyring = ring()
    answers = keyring.key("client 4").answers
    suspect = Oracle(keyring, lambda q, v: NO_ANSWER if q % 3 == 0 else 77 if q % 3 == 1 else answers[q])
    verdict = trace(suspect, keyring)
    assert verdict.clients == ("client 4",)
    assert verdict.matches["client 4"] == verdict.answered == 8


def test_the_other_variants_rescue_a_very_noisy_suspect() -> None:
    keyring = ring()
    verdicts = [trace(noisy(keyring, "client 6", 0.55, i), keyring) for i in range(100)]
    assert {c for v in verdicts for c in v.clients} == {"client 6"}
    second = [v for v in verdicts if v.clients and v.queries > keyring.questions]
    assert len(second) >= 15
    # They are asked question by question, the first of each having been asked before.
    for earlier, later in pairwise(second[0].transcript[keyring.questions :]):
        assert later.question == earlier.question or later.variant == 1


def test_colluders_are_all_named() -> None:
    keyring = ring(questions=64)
    words = [keyring.key(c).answers for c in ("client 1", "client 8")]
    verdicts = []
    for seed in range(30):
        choice = np.random.default_rng(seed).integers(2, size=64)
        verdicts.append(trace(Oracle(keyring, lambda q, v, c=choice: words[c[q]][q]), keyring))  # type: ignore[misc]
    assert all(v.clients and set(v.clients) <= {"client 1", "client 8"} for v in verdicts)
    assert sum(v.finding == "several" for v in verdicts) >= 20


def test_three_colluders_are_found_by_who_else_could_have_said_it() -> None:
    keyring = ring(questions=40)
    guilty = ("client 1", "client 4", "client 8")
    words = [keyring.key(client).answers for client in guilty]
    verdicts = []
    for seed in range(40):
        choice = np.random.default_rng(seed).integers(3, size=40)
        verdicts.append(trace(Oracle(keyring, lambda q, v, c=choice: words[c[q]][q]), keyring))  # type: ignore[misc]
    assert {client for verdict in verdicts for client in verdict.clients} == set(guilty)
    assert sum(bool(v.clients) for v in verdicts) >= 30
    found = [v for v in verdicts if v.by_company]
    assert len(found) >= 5
    for verdict in found:
        # It took no more queries than a suspect that carries nobody's mark, and the evidence is as good as any other.
        assert verdict.queries == 40 + 3 * PROBE
        assert all(verdict.e_values[client] >= 10 / 1e-6 for client in verdict.by_company)
        assert set(verdict.by_company) <= set(verdict.clients)


def test_exhaustive_asks_everything() -> None:
    keyring = ring()
    verdict = trace(leaked_by(keyring, "client 0"), keyring, exhaustive=True)
    assert verdict.clients == ("client 0",)
    assert verdict.queries == keyring.questions * keyring.held_out_variants


def test_batches_change_the_queries_and_nothing_else() -> None:
    keyring = ring()
    one, many = (trace(noisy(keyring, "client 5", 0.2, 3), keyring, batch=b) for b in (1, 7))
    assert many.queries == min(keyring.questions, -(-one.queries // 7) * 7)
    assert (one.clients, one.e_values, one.answered) == (many.clients, many.e_values, many.answered)


def test_answers_before_a_failure_are_kept() -> None:
    keyring = ring()

    class Failing:
        def ask(self, raw: Tensor) -> Answers:
            error = SuspectUnavailable("gone")
            error.answers = Answers(torch.tensor([1, 2]))
            raise error

    with pytest.raises(SuspectUnavailable) as failed:
        trace(Failing(), keyring, batch=5)
    assert failed.value.transcript == (Step(0, 0, 1), Step(1, 0, 2))


def test_a_reference_that_fails_costs_no_answer_of_the_suspect() -> None:
    class Failing:
        def ask(self, raw: Tensor) -> Answers:
            error = SuspectUnavailable("gone")
            error.answers = Answers(torch.zeros(3, dtype=torch.int64))
            raise error

    keyring = traces.ring(classes=20, assignment="label", held_out_variants=2)
    zero = nn.Sequential(nn.Flatten(), nn.Linear(6, 20))
    with pytest.raises(SuspectUnavailable) as failed:
        trace(zero, keyring, references=[Failing()])
    assert [step[:2] for step in failed.value.transcript] == [(q, v) for q in range(10) for v in range(2)]


def test_a_suspects_own_budget_ends_the_trace() -> None:
    class Spent:
        def ask(self, raw: Tensor) -> Answers:
            raise BudgetSpent("no more")

    assert trace(Spent(), ring()).finding == "inconclusive"


@pytest.mark.parametrize("labels", [torch.zeros(2, dtype=torch.int64), torch.zeros(1), torch.zeros(1, 1).long()])
def test_a_broken_suspect_gets_no_verdict(labels: Tensor) -> None:
    class Broken:
        def ask(self, raw: Tensor) -> Answers:
            return Answers(labels)

    with pytest.raises(SuspectError, match="one integer label for each"):
        trace(Broken(), ring())


@pytest.mark.parametrize(
    "options",
    [{"budget": 0}, {"batch": 0}, {"false_accusation": 0.0}, {"false_accusation": 1.5}, {"rule": "x"}],
)
def test_impossible_wishes_are_refused(options: dict[str, object]) -> None:
    keyring = ring()
    with pytest.raises(ValueError, match=r"at least one|probability|unknown rule"):
        trace(leaked_by(keyring, "client 0"), keyring, **options)  # type: ignore[arg-type]


def test_a_verdict_as_json() -> None:
    keyring = ring()
    plain = json.loads(json.dumps(trace(leaked_by(keyring, "client 0"), keyring).to_dict(), allow_nan=False))
    last = ["simulated", "restored"]
    first = ["finding", "clients", "by_scores", "queries", "false_accusation_bound", "e_values", "p_values"]
    middle = ["power", "premise", "not_cleared", "federation", "case", "spent"]
    assert list(plain) == [*first, *middle, "doubt", "probe", "confinement", "conventions", "identical", *last]
    assert plain["false_accusation_bound"] == 1e-6


class Nearest(nn.Module):
    """Answers with the label of the nearest of its templates: what a mark teaches, without the training."""

    def __init__(self, templates: Tensor, labels: Sequence[int], classes: int) -> None:
        super().__init__()
        self.templates = nn.Parameter(templates)
        self.labels, self.classes = torch.tensor(labels), classes
        self.dropout = nn.Dropout(0.9)

    def forward(self, inputs: Tensor) -> Tensor:
        nearest = torch.cdist(self.dropout(inputs).flatten(1), self.templates.flatten(1)).argmin(dim=1)
        return F.one_hot(self.labels[nearest], self.classes).float()


def test_a_module_is_traced_by_variants_it_was_not_taught_and_left_as_it_was() -> None:
    keyring = Keyring.generate(clients=["a", "b", "c"], classes=10, input_shape=SHAPE, secret=b"s" * 32)
    key = keyring.key("b")
    model = Nearest(keyring.inputs(key, "train").mean(dim=1), key.answers, 10).train()
    assert trace(model, keyring).clients == ("b",)
    assert model.training
    assert model.dropout.training


def test_the_papers_rule_always_accuses() -> None:
    keyring, rng = ring(), np.random.default_rng(0)
    marked = trace(leaked_by(keyring, "client 7"), keyring, rule="paper")
    assert marked.clients == ("client 7",)
    assert marked.queries == marked.matches["client 7"] == marked.answered == 4 * keyring.questions
    unmarked = trace(Oracle(keyring, lambda q, v: int(rng.integers(10))), keyring, rule="paper")
    assert unmarked.finding == "client"
    assert unmarked.false_accusation_bound is None
    assert trace(leaked_by(keyring, "client 7"), keyring, rule="paper", budget=10).finding == "inconclusive"


DIGITS = load_digits()


def small_model(seed: int, extra: tuple[Tensor, Tensor] | None = None) -> nn.Module:
    """A classifier of handwritten digits, trained for a moment; `extra` examples are what a mark is."""
    images = F.interpolate(torch.tensor(DIGITS.images).float().unsqueeze(1) / 8 - 1, size=SHAPE[1:])
    labels = torch.tensor(DIGITS.target)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 48), nn.ReLU(), nn.Linear(48, 10))
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_((torch.rand(weights.shape, generator=generator) - 0.5) * 2 / weights.shape[-1] ** 0.5)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        batch = torch.randint(len(images), (64,), generator=generator)
        inputs, targets = images[batch], labels[batch]
        if extra is not None:
            inputs, targets = torch.cat([inputs, extra[0]]), torch.cat([targets, extra[1]])
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimiser.step()
    return model


@one_thread()
def test_label_answers_need_unmarked_models_to_compare_with() -> None:
    """The false accusations of both rules on 20 unmarked models, and what the calibrated one still finds."""
    keyring = Keyring.generate(
        clients=[f"client {i}" for i in range(10)],
        classes=10,
        source=WafflePatterns(SHAPE),
        assignment="label",
        train_variants=16,
        held_out_variants=10,
        secret=b"k" * 32,
    )
    references = [small_model(seed) for seed in range(19)]
    unmarked = [small_model(seed) for seed in range(100, 120)]

    def calibrated(model: nn.Module) -> Verdict:
        return trace(model, keyring, references=references)

    assert all(trace(model, keyring, rule="paper").clients for model in unmarked)
    verdicts = [calibrated(model) for model in unmarked]
    assert sum(bool(v.clients) for v in verdicts) <= 2
    assert any(v.finding == "nobody" for v in verdicts)
    assert all(v.false_accusation_bound is None for v in verdicts)

    found = []
    for i in range(5):
        inputs = keyring.inputs(keyring.key(f"client {i}"), "train")[0]
        found.append(calibrated(small_model(200 + i, (inputs, torch.full((16,), i)))))
    assert sum(v.clients == (f"client {i}",) for i, v in enumerate(found)) >= 4
    assert found[0].queries == 100

    with pytest.raises(ValueError, match="references"):
        trace(unmarked[0], keyring)
    assert trace(unmarked[0], keyring, references=references, budget=50).finding == "inconclusive"
