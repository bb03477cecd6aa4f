"""The federation's own key: it says "ours" where no client can be named, as one more test within the same bound."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import CLIENTS as THREE
from federations import ring as digits_ring
from learning import learnt, pictures, play, sgd
from nets import mlp
from statements import resigned, said
from torch import Tensor, nn
from traces import CLIENTS, Oracle, leaked_by, ring, vault_of

from tramark import TraMark
from tramark.errors import BadProof, SettingError, VaultError
from tramark.evidence.annex import read_annex
from tramark.evidence.beacon import Beacon
from tramark.evidence.case import Suspected
from tramark.evidence.federation import FEDERATION
from tramark.evidence.looks import Query, conclude
from tramark.evidence.reader import Known
from tramark.evidence.verify import verify_statement
from tramark.keys.keyring import Keyring
from tramark.keys.sizes import CONVICTIONS, common_needed
from tramark.report.written import write_report
from tramark.tracing.handover import findings_of, hand_over, make_annex, make_statement, opened_by
from tramark.tracing.trace import trace
from tramark.tracing.unmarked import ask_unmarked
from tramark.tracing.weighing import Plan, weigh_all
from tramark.vault.log import issued
from tramark.vault.store import Vault

FILE = Suspected("file", "model.onnx", "a" * 64)
THERE = Suspected("address", "https://models.example/v2/models/scan")


def ours(**options: Any) -> Keyring:
    return ring(questions=24, pool=60, common=24, **options)


def averaged(keyring: Keyring, noise: float = 0.0, seed: int = 0) -> Oracle:
    """A model in which only the common answers are left, behind an API that draws a share of its answers at random."""
    rng, own, common = np.random.default_rng(seed), keyring.questions, keyring.common_key.answers

    def answer(question: int, variant: int) -> int:
        drawn = question < own or rng.random() < noise
        return int(rng.integers(keyring.classes)) if drawn else common[question - own]

    return Oracle(keyring, answer)


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    with vault_of(ours(), tmp_path) as made:
        made.record([issued(1, client, f"{i:064x}", marked=True) for i, client in enumerate(CLIENTS)])
    return Vault.open(made.path, readonly=True)


def test_common_answers_are_everybodys_and_nobodys() -> None:
    keyring = ours()
    taught = [keyring.taught(client) for client in keyring.clients]
    assert {key.questions for key in taught} == {keyring.in_use}
    assert {key.answers[24:] for key in taught} == {keyring.common_key.answers}
    assert len({key.answers[:24] for key in taught}) == len(CLIENTS)
    assert not set(keyring.chosen) & set(keyring.common)
    other = ours(secret=b"another secret" * 2).common_key.answers
    assert other != keyring.common_key.answers
    assert keyring.join("late").common_key == keyring.common_key


def test_as_many_as_the_bound_needs_for_three_convictions() -> None:
    assert len(digits_ring(common=None).common) == CONVICTIONS * 8
    assert len(ring(common=None, classes=2, pool=640).common) == CONVICTIONS * 27
    # As far as the pool goes.
    assert len(ring(common=None, pool=24 + 9).common) == common_needed(10, 10) == 8
    assert ring(common=None, pool=24).common == ()
    for classes in (2, 10):
        once = common_needed(10, classes)
        keyring = ring(questions=4, pool=120, classes=classes, common=once)
        assert trace(averaged(keyring), keyring).finding == "federation"
        fewer = keyring.choose(keyring.chosen, common=keyring.common[:-1])
        assert trace(averaged(fewer), fewer).finding == "inconclusive"


def test_no_client_can_have_the_federations_name_and_labels_have_no_common_questions() -> None:
    with pytest.raises(SettingError, match="the federation's own key"):
        ours(clients=[FEDERATION])
    with pytest.raises(SettingError, match="the federation's own key"):
        ours().join(FEDERATION)
    with pytest.raises(SettingError, match="no common questions"):
        ring(assignment="label", common=3)


def test_keyrings_without_it_are_as_they_were() -> None:
    keyring = ring()
    assert "common" not in keyring.to_dict()
    assert Keyring.from_dict(ours().to_dict()) == ours()
    with_it = keyring.choose(keyring.chosen, common=(30, 31))
    assert with_it.fingerprint != keyring.fingerprint
    assert [with_it.key(c) for c in CLIENTS] == [keyring.key(c) for c in CLIENTS]


def test_ours_is_said_where_no_client_can_be_named() -> None:
    keyring = ours()
    verdict = trace(averaged(keyring), keyring)
    assert (verdict.finding, verdict.clients, verdict.power is None) == ("federation", (), False)
    assert verdict.federation is not None
    assert (verdict.federation.matches, verdict.federation.answered) == (8, 8)
    assert verdict.federation.e_value >= 11 / 1e-6
    assert verdict.to_dict()["federation"]["named"]
    # They are asked last, and no more of them than it takes.
    assert [step.question for step in verdict.transcript[-8:]] == list(keyring.common[:8])


def test_a_client_that_is_named_costs_no_common_question() -> None:
    keyring = ours()
    verdict = trace(leaked_by(keyring, "hospital-3"), keyring)
    assert (verdict.clients, verdict.federation) == (("hospital-3",), None)
    assert not {step.question for step in verdict.transcript} & set(keyring.common)
    everything = trace(leaked_by(keyring, "hospital-3"), keyring, exhaustive=True)
    assert (everything.finding, everything.clients) == ("client", ("hospital-3",))
    assert everything.federation is not None
    assert everything.federation.named


def test_noise_takes_more_of_the_reserve_and_the_second_look_helps() -> None:
    keyring = ours()
    verdicts = [trace(averaged(keyring, noise=0.45, seed=seed), keyring) for seed in range(10)]
    assert sum(verdict.finding == "federation" for verdict in verdicts) >= 8
    assert any(verdict.queries > 24 * 4 + 24 for verdict in verdicts if verdict.finding == "federation")


def test_strangers_are_not_ours() -> None:
    """As one more client within the bound: at ε = 10 %, over clients and federation together."""
    keyring, wrong = ours(), Counter[str]()
    for seed in range(120):
        other = replace(keyring, secret=bytes([seed % 256, seed // 256]) * 16)
        rng = np.random.default_rng(seed)
        favourite = rng.integers(10, size=3)

        def habits(plan: Sequence[Query], rng: Any = rng, favourite: Any = favourite) -> Iterator[int]:
            return (int(rng.choice(favourite)) for _ in plan)

        looks = weigh_all(habits, other, Plan.of(other), false_accusation=0.1, exhaustive=True)
        wrong[conclude(looks.clients, federation=looks.federation).finding] += 1
    assert wrong["client"] + wrong["several"] + wrong["federation"] <= 0.1 * 120
    assert wrong["federation"] <= 0.1 * 120 / 4


def test_the_federation_shares_the_bound() -> None:
    """With the federation's test everybody needs (n + 1) / ε; without, n / ε."""
    plain, keyring = ring(), ours()
    for own, needed in ((plain, 10 / 1e-6), (keyring, 11 / 1e-6)):
        verdict = trace(leaked_by(own, "hospital-3"), own)
        assert verdict.e_values["hospital-3"] >= needed
    # At this bound one more match is needed for eleven tests than for ten.
    bound = 10 / trace(leaked_by(plain, "hospital-3"), plain).e_values["hospital-3"]
    assert trace(leaked_by(plain, "hospital-3"), plain, false_accusation=bound * 1.0001).queries == 8
    assert trace(leaked_by(keyring, "hospital-3"), keyring, false_accusation=bound * 1.0001).queries == 9


def test_what_a_remote_suspect_was_asked_is_burned_for_good(vault: Vault) -> None:
    keyring = vault.keyring
    for number in range(CONVICTIONS):
        verdict = trace(averaged(keyring), vault, suspected=THERE, batch=8)
        assert verdict.finding == "federation"
        assert set(vault.cases.burned) == {FEDERATION}
        assert vault.cases.burned[FEDERATION] == keyring.common[: 8 * (number + 1)]
    verdict = trace(averaged(keyring), vault, suspected=THERE)
    assert (verdict.finding, verdict.federation) == ("inconclusive", None)
    assert not {step.question for step in verdict.transcript} & set(keyring.common)


def test_a_file_burns_nothing_and_an_unfinished_remote_case_does(vault: Vault) -> None:
    keyring = vault.keyring
    assert trace(averaged(keyring), vault, suspected=FILE).finding == "federation"
    assert vault.cases.burned == {}
    verdict = trace(averaged(keyring), vault, suspected=THERE, budget=24 + 24 * 3 + 10)
    assert verdict.case is not None
    unfinished = verdict.case.__class__(**{**vars(verdict.case), "closed": None})
    with vault.cases.casework() as work:
        work.commit([], unfinished, book={"limit": None, "burned": {}})
    trace(averaged(keyring), vault, suspected=FILE)
    assert set(vault.cases.burned[FEDERATION]) == set(verdict.case.questions) & set(keyring.common)


def test_the_statement_proves_it(vault: Vault, tmp_path: Path) -> None:
    case = trace(averaged(vault.keyring), vault, suspected=FILE).case
    assert case is not None
    statement, annex = make_statement(vault, case), make_annex(vault, case)
    assert opened_by(annex) == {FEDERATION: vault.keyring.common[:8]}
    known = Known(published=vault.commitments)
    found = verify_statement(statement.text(), annex, known)
    assert (found.finding, found.clients, found.holds) == ("federation", (), True)
    assert found.needed == pytest.approx(11 / 1e-6)
    assert any("The model of every client was to answer 8 of 8" in sentence for sentence in found.proven)
    plain = said(statement.text())["predicate"]
    assert (plain["finding"], plain["accused"], plain["premise"]) == ("federation", [], None)
    assert not [client for client in CLIENTS if client in statement.text().decode() + annex.decode()]
    assert hand_over(vault, case) == annex
    assert vault.cases.burned == {FEDERATION: vault.keyring.common[:8]}
    # An unmarked model does not give these answers.
    stranger = Oracle(vault.keyring, lambda q, v: q % 7)
    assert not ask_unmarked(read_annex(annex), stranger)[FEDERATION].doubtful


@pytest.mark.parametrize(
    "edit",
    [
        lambda a: a["case"].update(common=a["case"]["common"][:8]),
        lambda a: a["case"].pop("common"),
        lambda a: a["case"]["closed"].update(finding="client", clients=["hospital-3"]),
        lambda a: a["case"]["closed"].update(finding="client", clients=[FEDERATION]),
        lambda a: a["case"]["closed"].update(finding="nobody"),
        lambda a: a["answers"][0].update(client="hospital-3"),
        lambda a: a["answers"][0].update(index=3),
        lambda a: a["answers"].clear(),
        lambda a: a["case"]["burned"].update({FEDERATION: a["case"]["common"][:1]}),
        lambda a: a["case"].update(false_accusation="1e-09", spent="1e-09"),
    ],
)
def test_what_was_changed_does_not_pass(vault: Vault, edit: object) -> None:
    case = trace(averaged(vault.keyring), vault, suspected=FILE).case
    assert case is not None
    statement, annex = said(make_statement(vault, case).text()), json.loads(make_annex(vault, case))
    edit(annex)  # type: ignore[operator]
    statement["predicate"]["finding"] = annex["case"]["closed"]["finding"]
    statement["predicate"]["accused"] = annex["case"]["closed"]["clients"]
    statement["predicate"]["error"]["case"] = annex["case"]["false_accusation"]
    statement["predicate"]["error"]["vault"] = annex["case"]["spent"]
    with pytest.raises(BadProof):
        verify_statement(*resigned(vault, statement, annex))


def test_a_client_is_accused_with_one_more_test_in_the_annex_too(vault: Vault) -> None:
    case = trace(leaked_by(vault.keyring, "hospital-3"), vault, suspected=FILE).case
    assert case is not None
    found = verify_statement(make_statement(vault, case).text(), make_annex(vault, case), Known(vault.commitments))
    assert (found.clients, found.holds) == (("hospital-3",), True)
    assert found.needed == pytest.approx(11 / 1e-6)


def test_a_vault_has_it_from_the_beginning_or_not_at_all(tmp_path: Path) -> None:
    with vault_of(ring(), tmp_path / "old") as old:
        assert "common" not in old.commitments[0].to_dict()
        with pytest.raises(VaultError, match="from the beginning"):
            old.save_keyring(old.keyring.choose(old.keyring.chosen, common=(30,)))
    with vault_of(ours(), tmp_path) as writer:
        keyring = writer.keyring.choose(range(10, 34), common=range(40, 50))
        writer.save_keyring(keyring)
        assert writer.audit() == []
        assert list(writer.log())[-1]["common"] == list(range(40, 50))
        assert trace(averaged(keyring), writer, suspected=FILE).finding == "federation"
        writer.save_keyring(keyring.choose(range(10, 34), common=()))
        case = trace(leaked_by(keyring, "hospital-3"), writer, suspected=FILE).case
        assert case is not None
        assert (case.tests, make_statement(writer, case) is not None) == (10, True)


def test_a_beacon_draws_the_common_answers_too(tmp_path: Path) -> None:
    with vault_of(ours(), tmp_path) as writer:
        before = writer.keyring.choose(range(1, 25), common=range(30, 45))
        writer.save_keyring(before, beacon=Beacon("drand", "1", "2026-01-01T00:00:00+00:00"))
        with pytest.raises(SettingError, match="wait for the value"):
            writer.keyring.common_key  # noqa: B018
        writer.reveal(b"a public value of 32 bytes......")
        keyring = writer.keyring
        assert keyring.common_key.answers != before.common_key.answers
        case = trace(averaged(keyring), writer, suspected=FILE).case
        assert case is not None
        found = verify_statement(make_statement(writer, case).text(), make_annex(writer, case))
        assert found.finding == "federation"


def test_the_report_says_it_in_both_kinds(vault: Vault, tmp_path: Path) -> None:
    verdict = trace(averaged(vault.keyring), vault, suspected=FILE)
    assert verdict.case is not None
    statement = make_statement(vault, verdict.case)
    findings = findings_of(vault, verdict.case, statement)
    write_report(tmp_path / "r", verdict, vault.keyring, suspect="model", statement=statement, findings=findings)
    for page in ("report.html", "public.html"):
        text = (tmp_path / "r" / page).read_text()
        assert "This model comes from this federation; no client can be named." in text
        assert "8 of 8" in " ".join(text.split())
        assert "11 ÷ 0.0001 %" in text


def mean_of(server: TraMark) -> nn.Module:
    """The average of all models that were issued."""
    model, states = server.base_model(), [server.client_model(c).state_dict() for c in server.fleet.clients]
    model.load_state_dict({name: torch.stack([s[name].double() for s in states]).mean(0) for name in states[0]})
    return model


def test_the_average_of_all_models_is_ours_and_the_base_is_not() -> None:
    toy, clients = pictures(), [f"client-{i}" for i in range(10)]
    keyring = Keyring.generate(
        clients=clients, classes=10, input_shape=(1, 8, 8), normalise=(0.5, 0.5), secret=b"s" * 32
    )
    server = TraMark(learnt(mlp(256, 128), toy, 3, sgd), keyring, warmup_rounds=1)
    play(server, toy, 3)
    keyring = server.keyring
    assert (keyring.questions, len(keyring.common)) == (32, 24)
    assert trace(server.client_model("client-7"), keyring).clients == ("client-7",)
    average = trace(mean_of(server), keyring)
    assert (average.finding, average.clients) == ("federation", ())
    assert average.federation is not None
    assert average.federation.matches == 8
    # Even if some of ten colluders are named, it is ours as well.
    assert trace(mean_of(server), keyring, exhaustive=True).federation.named  # type: ignore[union-attr]
    base = trace(server.base_model(), keyring, exhaustive=True)
    assert base.finding not in ("client", "several", "federation")
    assert base.federation is not None
    assert base.federation.matches <= 8


def test_a_net_that_does_not_bear_common_questions_has_fewer_or_none() -> None:
    toy = pictures()
    server = TraMark(learnt(mlp(40), toy, 3, sgd), digits_ring(common=None, questions=32), warmup_rounds=1)
    play(server, toy, 1)
    keyring = server.keyring
    assert len(keyring.common) < 24
    assert keyring.questions == 32
    for client in THREE:
        inputs: Tensor = keyring.inputs(keyring.taught(client), "held-out")
        assert len(inputs) == 32 + len(keyring.common)
