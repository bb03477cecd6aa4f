"""Looks at a suspect's answers: the error bound by simulation against hostile suspects, and what is concluded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tramark.evidence.looks import POWER, PROBE, conclude, weigh
from tramark.evidence.statistics import LOOKS, NO_ANSWER, conviction
from tramark.evidence.tally import Company, Evidence

Ints = NDArray[np.int8]

CLASSES = st.integers(2, 50)


@given(st.data(), st.integers(1, 8), st.integers(2, 5), st.integers(1, 30))
def test_the_order_of_clients_does_not_matter(data: Any, clients: int, classes: int, questions: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    codewords = rng.integers(classes, size=(clients, questions))
    answers = rng.integers(-1, classes + 1, size=questions)
    order = rng.permutation(clients)
    one, other = (Evidence(clients, classes, false_accusation=0.3) for _ in range(2))
    for column, answer in enumerate(answers.tolist()):
        one.add(codewords[:, column], answer)
        other.add(codewords[order, column], answer)
    assert (one.log_e()[order] == other.log_e()).all()
    assert (one.p()[order] == other.p()).all()
    assert {int(order[i]) for i in other.accused} == set(one.accused)


@pytest.mark.parametrize("answer", [NO_ANSWER, 10, 999])
def test_what_no_codeword_holds_is_no_evidence(answer: int) -> None:
    evidence = Evidence(2, 10, false_accusation=0.01)
    evidence.add(np.array([1, 2]), 1)
    before = evidence.log_e()
    evidence.add(np.array([1, 2]), answer)
    assert evidence.answered == 1
    assert (evidence.log_e() == before).all()


def test_the_accused_keep_the_evidence_that_convicted_them() -> None:
    evidence = Evidence(10, 10, false_accusation=1e-6)
    for answer in [0] * 8 + [1] * 8:
        evidence.add(np.arange(10) * 0 + np.array([0] + [2] * 9), answer)
    assert evidence.accused == [0]
    assert evidence.log_e()[0] >= np.log(10 / 1e-6)
    assert evidence.matches[0] == 8


def replayed(words: NDArray[Any], say: Callable[[int, int], int], **options: Any) -> tuple[list[Evidence], list[Any]]:
    """The looks at a suspect that answers by rule, and what it was asked."""
    asked: list[Any] = []

    def answers(plan: Any) -> Any:
        for query in plan:
            asked.append(query)
            yield say(*query)

    sizes = {"variants": 4, "clients": len(words), "classes": 10, "false_accusation": 1e-6}
    return weigh(answers, words, range(words.shape[1]), **sizes | options), asked


def test_accomplices_are_looked_for_while_the_accused_explain_too_little() -> None:
    words = np.random.default_rng(0).integers(10, size=(10, 60))
    _, alone = replayed(words, lambda q, v: int(words[0, q]))
    assert len(alone) == 8
    looks, both = replayed(words, lambda q, v: int(words[q % 2, q]))
    assert set(looks[0].accused) == {0, 1}
    assert 20 < len(both) < 60


def test_nothing_seen_before_an_accusation_depends_on_codewords() -> None:
    """Other innocents' codewords: the same is asked, and as long, and the same power is reached."""
    rng = np.random.default_rng(1)
    suspects = [lambda q, v: 3, lambda q, v: (q * 7 + v) % 10, lambda q, v: (q + v * (q > 20)) % 10]
    for say in suspects:
        seen = set()
        for _ in range(20):
            words = rng.integers(10, size=(10, 48))
            looks, asked = replayed(words, say)
            outcome = conclude(looks)
            assert not outcome.accused
            seen.add((tuple(asked), outcome.power, outcome.finding))
        assert len(seen) == 1


def test_what_is_seen_after_an_accusation_depends_on_the_accused_alone() -> None:
    rng = np.random.default_rng(2)
    guilty = rng.integers(10, size=(2, 60))
    mixed = np.where(rng.random(60) < 0.6, guilty[0], guilty[1])
    seen = set()
    for _ in range(50):
        words = np.vstack([guilty, rng.integers(10, size=(8, 60))])
        looks, asked = replayed(words, lambda q, v: int(mixed[q]))
        seen.add((tuple(asked), tuple(looks[0].accused)))
    assert len(seen) == 1


def test_the_second_look_is_left_out_if_variants_change_nothing() -> None:
    words = np.random.default_rng(3).integers(10, size=(10, 24))
    _, alike = replayed(words, lambda q, v: 3)
    assert alike == [(q, 0) for q in range(24)] + [(q, v) for q in range(PROBE) for v in range(1, 4)]
    _, unlike = replayed(words, lambda q, v: 3 if q or v < 3 else 4)
    assert len(unlike) == 24 * 4


def test_a_burned_question_does_not_count_for_whom_it_is_burned() -> None:
    words = np.random.default_rng(4).integers(10, size=(10, 24))
    burned = {q: np.array([0]) for q in range(20)}
    looks, _ = replayed(words, lambda q, v: int(words[0, q]), burned=burned)
    assert not any(look.accused for look in looks)
    assert (looks[0].counted[0], looks[0].matches[0], looks[0].counted[1]) == (4, 4, 24)
    looks, asked = replayed(words, lambda q, v: int(words[1, q]), burned=burned)
    assert (looks[0].accused, len(asked)) == ([1], 8)


def test_who_has_too_few_questions_left_is_not_cleared() -> None:
    words = np.zeros((10, 60), dtype=int)
    burned = {q: np.array([2, 7]) for q in range(40)}
    outcome = conclude(replayed(words, lambda q, v: 1, burned=burned)[0])
    assert (outcome.finding, outcome.not_cleared) == ("nobody", (2, 7))
    everybody = {q: np.arange(10) for q in range(40)}
    outcome = conclude(replayed(words, lambda q, v: 1, burned=everybody)[0])
    assert (outcome.finding, outcome.not_cleared) == ("inconclusive", ())


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 2**32))
def test_factors_have_mean_one_whatever_is_burned(clients: int, classes: int, seed: int) -> None:
    """The mean over all symbols of one client, for any others' symbols and any burned set."""
    rng = np.random.default_rng(seed)
    others, answer = rng.integers(classes, size=clients), int(rng.integers(classes))
    burned = np.flatnonzero(rng.random(clients) < 0.4)
    for kind in (Evidence, Company):
        total = np.zeros(clients)
        for symbol in range(classes):
            for client in range(clients):
                look = kind(clients, classes, false_accusation=0.01)
                words = others.copy()
                words[client] = symbol
                look.add(words, answer, burned)
                total[client] += np.exp(look.now()[client]) / classes
        assert total == pytest.approx(np.ones(clients))


@pytest.mark.parametrize("bound", [0.0, 1.0, -1e-6, 2.0])
def test_a_bound_is_a_probability(bound: float) -> None:
    with pytest.raises(ValueError, match="it is a probability"):
        Evidence(2, 10, false_accusation=bound)


# Suspects that know all about the method, and the codewords as far as they have been asked about (`past`),
# but not those to come: runs × clients × t in, one answer per run out.
Suspect = Callable[[np.random.Generator, Ints, int], NDArray[Any]]


def constant(rng: np.random.Generator, past: Ints, classes: int) -> NDArray[Any]:
    return np.zeros(len(past), dtype=np.int8)


def favourite(rng: np.random.Generator, past: Ints, classes: int) -> NDArray[Any]:
    return np.where(rng.random(len(past)) < 0.7, 0, rng.integers(classes, size=len(past)))


def random(rng: np.random.Generator, past: Ints, classes: int) -> NDArray[Any]:
    return rng.integers(classes, size=len(past))


def commonest(rng: np.random.Generator, past: Ints, classes: int) -> NDArray[Any]:
    """Adaptive: says what the clients were to say most often of late."""
    counts = np.stack([(past[:, :, -1:] == label).sum(axis=(1, 2)) for label in range(classes)])
    return np.asarray(counts.argmax(axis=0))


def framing(rng: np.random.Generator, past: Ints, classes: int) -> NDArray[Any]:
    """Adaptive: follows the client who was lucky first, with the label that was luckiest for it."""
    if not past.shape[2]:
        return constant(rng, past, classes)
    leader = (past == 0).sum(axis=2).argmax(axis=1)
    return np.asarray(past[np.arange(len(past)), leader, -1])


@pytest.mark.parametrize("suspect", [constant, favourite, random, commonest, framing])
@pytest.mark.parametrize("classes", [10, 2])
def test_innocents_are_accused_no_more_often_than_the_bound(suspect: Suspect, classes: int) -> None:
    """100,000 null runs of both looks for each kind of suspect; whoever is ever accused in a run counts."""
    runs, clients, questions, bound = 20_000 if classes == 10 else 10_000, 5, 16, 0.05
    rng = np.random.default_rng(0)
    accused = 0
    for _ in range(5 if classes == 10 else 10):
        codewords = rng.integers(classes, size=(runs, clients, questions), dtype=np.int8)
        looks = [
            Evidence(clients, classes, false_accusation=bound, share=share, rows=runs * clients)
            for share in (LOOKS.single, LOOKS.plural)
        ]
        for t in range(questions):
            answers = np.stack([suspect(rng, codewords[:, :, :t], classes) for _ in range(3)])
            agree = answers[1] == answers[2]
            for look, said in zip(looks, (answers[0], np.where(agree, answers[1], answers[0])), strict=True):
                # Only agreement matters, so that every run's answer may be called 0.
                look.add(((codewords[:, :, t] - said[:, None]) % classes).reshape(-1), 0)
        accused += len({row // clients for look in looks for row in look.accused})
    assert accused <= bound * 100_000
    # And the bound is not kept by accusing nobody at all.
    assert accused > 0


@given(st.integers(1, 8), CLASSES, st.integers(0, 2**32))
def test_an_innocents_next_factor_has_mean_one_in_any_company(others: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    said, words = rng.integers(classes, size=4), rng.integers(classes, size=(others, 4))
    past = rng.integers(classes, size=3)

    def e_value(symbols: list[int]) -> float:
        company = Company(others + 1, classes, false_accusation=0.01)
        for column, symbol in enumerate(symbols):
            company.add(np.array([symbol, *words[:, column]]), int(said[column]))
        return float(np.exp(company.log_e()[0]))

    now = e_value([*past])
    assert np.mean([e_value([*past, symbol]) for symbol in range(classes)]) == pytest.approx(now)


@pytest.mark.parametrize("colluders", [0, 1, 2, 3])
def test_an_innocent_in_company_is_accused_no_more_often_than_the_bound(colluders: int) -> None:
    """Whatever the others did, and if a suspect with no colluders favours one label."""
    runs, clients, questions, classes, bound = 2000, 5, 12, 4, 0.1
    rng = np.random.default_rng(colluders)
    accused = convicted = 0
    for _ in range(runs):
        company = Company(clients, classes, false_accusation=bound)
        for _ in range(questions):
            words = rng.integers(classes, size=clients)
            company.add(words, int(rng.choice(words[:colluders])) if colluders else int(rng.random() < 0.3))
        accused += any(client >= colluders for client in company.accused)
        convicted += any(client < colluders for client in company.accused)
    assert accused <= bound * runs
    assert convicted > 0.1 * runs if colluders else accused > 0


def test_colluders_are_convicted_sooner_by_who_else_could_have_said_it() -> None:
    """Three who share the answers, in a federation of ten, at the shares of the error that a trace gives."""
    rng = np.random.default_rng(7)
    alone = together = 0
    for _ in range(200):
        looks = [
            Evidence(10, 10, false_accusation=1e-6, share=LOOKS.single),
            Company(10, 10, false_accusation=1e-6, share=LOOKS.company),
        ]
        for _ in range(32):
            words = rng.integers(10, size=10)
            said = int(words[rng.integers(3)])
            for look in looks:
                look.add(words, said)
        alone += bool(looks[0].accused)
        together += bool(looks[1].accused)
        assert set(looks[0].accused) | set(looks[1].accused) <= {0, 1, 2}
    assert together > 1.5 * alone > 0


def test_a_leaker_does_not_endanger_the_others() -> None:
    """The suspect is client 0's own model; colluding with client 1 in half of the questions."""
    runs, clients, questions, classes, bound = 50_000, 5, 24, 10, 0.05
    rng = np.random.default_rng(1)
    codewords = rng.integers(classes, size=(runs, clients, questions), dtype=np.int8)
    evidence = Evidence(clients, classes, false_accusation=bound, rows=runs * clients)
    for t in range(questions):
        said = codewords[np.arange(runs), rng.integers(2, size=runs), t]
        evidence.add(((codewords[:, :, t] - said[:, None]) % classes).reshape(-1), 0)
    guilty = [row for row in evidence.accused if row % clients < 2]
    innocent = {row // clients for row in evidence.accused if row % clients >= 2}
    assert len(innocent) <= bound * runs
    assert len(guilty) > 0.95 * 2 * runs


def runs_that_accuse(order: str, runs: int = 300) -> int:
    """Null runs with a suspect that always says 0, its questions asked in some order."""
    clients, classes, questions, pool = 10, 10, 24, 200
    rng = np.random.default_rng(2)
    accusing = 0
    for _ in range(runs):
        codewords = rng.integers(classes, size=(clients, pool))
        evidence = Evidence(clients, classes, false_accusation=0.01)
        left = list(range(pool))
        for _ in range(questions):
            if order == "confirm the leader":
                leader = int(evidence.matches.argmax())
                # It asks what would convict the leader if the suspect said what it has always said.
                chosen = next((q for q in left if codewords[leader, q] == 0), left[0])
            else:
                chosen = left[0]
            left.remove(chosen)
            evidence.add(codewords[:, chosen], 0)
        accusing += bool(evidence.accused)
    return accusing


def test_choosing_questions_by_unasked_answers_breaks_the_bound_and_a_fixed_order_does_not() -> None:
    assert runs_that_accuse("confirm the leader") == 300
    assert runs_that_accuse("fixed") <= 0.01 * 300 + 3


def test_asking_again_after_a_miss_breaks_the_bound_and_plurality_does_not() -> None:
    runs, clients, classes, questions, bound = 20_000, 1, 10, 24, 0.01
    rng = np.random.default_rng(3)
    again, plural = (Evidence(clients, classes, false_accusation=bound, rows=runs) for _ in range(2))
    for _ in range(questions):
        codeword = rng.integers(classes, size=runs)
        first, second, third = rng.integers(classes, size=(3, runs))
        again.add((codeword - np.where(first == codeword, first, second)) % classes, 0)
        plural.add((codeword - np.where(second == third, second, first)) % classes, 0)
    assert len(again.accused) > 5 * bound * runs
    assert len(plural.accused) <= bound * runs


def test_conviction_is_what_simulated_leakers_meet() -> None:
    runs, rate = 20_000, 0.7
    rng = np.random.default_rng(4)
    evidence = Evidence(10, 10, false_accusation=LOOKS.single * 1e-6, rows=runs)
    for t, expected in enumerate(conviction(24, 10, 10, rate=rate), start=1):
        evidence.add((rng.random(runs) >= rate).astype(int), 0)
        if t in (8, 12, 16, 24):
            assert len(evidence.accused) / runs == pytest.approx(expected, abs=0.02)


def test_a_faint_leaker_is_seldom_cleared() -> None:
    """Power says how surely a leaker would be accused; those that are cleared wrongly must be that few."""
    rng = np.random.default_rng(5)
    cleared = 0
    for _ in range(1000):
        evidence = Evidence(10, 10, false_accusation=1e-6, share=LOOKS.single)
        for _ in range(49):
            codeword = rng.integers(10, size=10)
            evidence.add(codeword, int(codeword[0] if rng.random() < 0.5 else rng.integers(10)))
        cleared += conclude([evidence]).finding == "nobody"
    assert 0 < cleared <= (1 - POWER) * 1000 + 20


def test_evidence_against_one_client_needs_no_other_codeword() -> None:
    rng = np.random.default_rng(6)
    codewords = rng.integers(10, size=(50, 24))
    known = {(q, v): int(codewords[7, q]) for q in range(24) for v in range(2)}

    def answers(plan: Any) -> Any:
        return (known[place] for place in plan)

    def accused(rows: NDArray[Any]) -> list[int]:
        looks = weigh(
            answers,
            rows,
            range(24),
            variants=2,
            clients=50,
            classes=10,
            false_accusation=1e-6,
            exhaustive=True,
        )
        return looks[0].accused

    assert accused(codewords) == [7]
    assert accused(codewords[7:8]) == [0]
    assert accused(codewords[8:9]) == []


def looks_at(answers: list[int], codewords: list[list[int]]) -> list[Evidence]:
    """A look at single clients and one at their company, both at the same answers."""
    clients = len(codewords)
    looks = [kind(clients, 10, false_accusation=1e-3) for kind in (Evidence, Company)]
    for column, answer in enumerate(answers):
        for look in looks:
            look.add(np.array([word[column] for word in codewords]), answer)
    return looks


def test_all_looks_together_accuse() -> None:
    words = [[3] * 40, [7] * 40, [1] * 40]
    alone = conclude(looks_at([3] * 8, words))
    assert (alone.finding, alone.accused, alone.by_company, alone.power) == ("client", (0,), (), None)
    both = conclude(looks_at([3, 7] * 20, words))
    assert (both.finding, set(both.accused)) == ("several", {0, 1})
    nobody = conclude(looks_at([5] * 40, words))
    assert (nobody.finding, nobody.accused) == ("nobody", ())
    assert nobody.power is not None
    assert nobody.power >= POWER
    assert conclude(looks_at([5], words)).finding == "inconclusive"


def test_who_is_accused_by_the_company_alone_is_told() -> None:
    single, company = looks_at([3, 7, 2] * 5, [[3, 9, 9] * 5, [9, 7, 9] * 5, [9, 9, 2] * 5, [8] * 15])
    assert not single.accused
    assert company.accused
    outcome = conclude([single, company])
    assert outcome.by_company == outcome.accused == tuple(company.accused)
    assert outcome.shown is company


def test_the_look_that_is_shown_accuses_most_and_then_has_most_answers() -> None:
    def look(answers: int, matches: bool) -> Evidence:
        evidence = Evidence(2, 10, false_accusation=1e-3)
        for _ in range(answers):
            evidence.add(np.array([1 if matches else 2, 3]), 1)
        return evidence

    accusing, fuller, last = look(8, True), look(9, False), look(9, False)
    assert conclude([accusing, fuller]).shown is accusing
    assert conclude([fuller, accusing]).shown is accusing
    assert conclude([look(2, False), fuller]).shown is fuller
    assert conclude([fuller, last]).shown is last


def test_e_values_are_the_largest_of_all_looks_and_finite() -> None:
    single, company = looks_at([3] * 2000, [[3] * 2000, [4] * 2000])
    outcome = conclude([single, company])
    assert outcome.e_values[1] == pytest.approx(np.exp(max(single.log_e()[1], company.log_e()[1])))
    assert np.isfinite(outcome.e_values).all()
    unbounded = Evidence(2, 10, false_accusation=1e-3)
    unbounded._at_accusation[0] = 1e6
    assert conclude([unbounded]).e_values[0] == pytest.approx(1e300)
