"""A bundle convicts whom the evidence convicts, tells nothing else, and no byte of it can be changed."""

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import make_bundle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from traces import Oracle, case, hidden, in_company, leaked_by, resigned, ring, vault_of

from tramark.errors import BadProof
from tramark.evidence.bundle import verify_bundle
from tramark.evidence.commitment import canonical, sign
from tramark.evidence.findings import fingerprint
from tramark.evidence.premise import Premise
from tramark.evidence.published import read_published
from tramark.evidence.statistics import NO_ANSWER
from tramark.keys.sources import Tokens, Vectors
from tramark.tracing.trace import trace
from tramark.vault.commit import commit

if sys.platform == "win32":
    pytest.skip("the vault locks and syncs as POSIX systems do", allow_module_level=True)

from tramark.vault.head import PUBLIC
from tramark.vault.storage import SIGNING
from tramark.vault.store import Vault


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    """A vault whose questions were chosen after it was made, and which one client joined late."""
    keyring = ring()
    with vault_of(keyring, tmp_path_factory.mktemp("evidence")) as made:
        keyring = keyring.choose(range(39, 15, -1))
        made.save_keyring(keyring)
        made.save_keyring(keyring.join("latecomer"))
        yield made


@pytest.mark.parametrize("client", ["hospital-3", "latecomer"])
@pytest.mark.parametrize("batch", [1, 5])
def test_a_leaker_is_convicted_without_the_vault(vault: Vault, client: str, batch: int) -> None:
    verdict, bundle = case(vault, client, batch=batch)
    found = verify_bundle(canonical(bundle))
    assert (found.finding, found.clients, found.queries) == ("client", (client,), verdict.queries)
    assert found.e_values == {client: pytest.approx(verdict.e_values[client])}
    assert found.e_values[client] >= found.needed == pytest.approx(11 / 1e-6)
    assert found.matches[client] == found.answered >= verdict.answered
    assert found.false_accusation_bound == verdict.false_accusation_bound
    assert (found.suspect, found.notes, found.vault) == ("model.onnx", "labels as they come", vault.id)
    assert found.fingerprint == fingerprint(vault.commitments[0].public_key)
    assert any(found.fingerprint in sentence for sentence in found.proven)
    assert any(client in sentence and "e-value" in sentence for sentence in found.proven)
    json.dumps(found.to_dict())


def test_colluders_are_convicted_each_by_its_own_answers(vault: Vault) -> None:
    verdict, bundle = case(vault, "hospital-1", "hospital-8", exhaustive=True, false_accusation=0.01)
    assert verdict.finding == "several"
    found = verify_bundle(bundle)
    assert found.clients == verdict.clients
    assert found.matches == {client: verdict.matches[client] for client in verdict.clients}
    assert min(found.e_values.values()) >= found.needed


def test_a_verdict_by_the_company_opens_everybodys_answers(vault: Vault) -> None:
    verdict = in_company(vault.keyring)
    bundle = make_bundle(vault, verdict, suspect="model.onnx")
    found = verify_bundle(bundle)
    assert found.clients == verdict.clients
    assert found.e_values == {client: pytest.approx(verdict.e_values[client]) for client in verdict.clients}
    assert found.matches == {client: verdict.matches[client] for client in verdict.clients}
    assert [proof["client"] for proof in bundle["answers"]] == list(vault.keyring.clients)
    # Neither the answers of the accused alone nor those of all but one convict anybody.
    own = [proof for proof in bundle["answers"] if proof["client"] in verdict.clients]
    with pytest.raises(BadProof, match="does not suffice"):
        verify_bundle(resigned(bundle, vault, answers=own))
    innocent = next(proof for proof in bundle["answers"] if proof["client"] not in verdict.clients)
    with pytest.raises(BadProof, match="nor those of everybody"):
        verify_bundle(resigned(bundle, vault, answers=[p for p in bundle["answers"] if p != innocent]))
    twice = [own[0] if proof == innocent else proof for proof in bundle["answers"]]
    with pytest.raises(BadProof, match="nor those of everybody"):
        verify_bundle(resigned(bundle, vault, answers=twice))


def test_a_verdict_of_the_second_look_is_found_again(vault: Vault) -> None:
    keyring = vault.keyring
    verdicts = (trace(leaked_by(keyring, "hospital-2", noise=0.5, seed=seed), keyring) for seed in range(50))
    verdict = next(v for v in verdicts if v.clients and v.queries > keyring.questions)
    found = verify_bundle(make_bundle(vault, verdict, suspect="an API that is not sure"))
    assert found.clients == verdict.clients
    assert found.e_values["hospital-2"] == pytest.approx(verdict.e_values["hospital-2"])
    assert (found.matches["hospital-2"], found.answered) == (verdict.matches["hospital-2"], verdict.answered)
    assert found.p_values["hospital-2"] == pytest.approx(verdict.p_values["hospital-2"])


def test_refusals_count_for_nobody(vault: Vault) -> None:
    answers = vault.keyring.key("hospital-5").answers
    suspect = Oracle(vault.keyring, lambda q, v: NO_ANSWER if q % 3 == 0 else answers[q])
    verdict = trace(suspect, vault.keyring)
    found = verify_bundle(make_bundle(vault, verdict, suspect="moody"))
    assert found.clients == ("hospital-5",)
    assert found.answered == verdict.answered < found.queries


def test_without_an_accused_no_answer_is_opened(vault: Vault) -> None:
    nobody = trace(Oracle(vault.keyring, lambda q, v: 0), vault.keyring, false_accusation=0.3)
    unclear = trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring, budget=6)
    for verdict, kind in ((nobody, "nobody"), (unclear, "inconclusive")):
        bundle = make_bundle(vault, verdict, suspect="model.onnx")
        found = verify_bundle(bundle)
        assert (found.finding, found.clients, found.e_values) == (kind, (), {})
        assert found.answered == verdict.answered
        assert bundle["answers"] == []
        assert any("nobody" in sentence for sentence in found.unproven)


def test_a_bundle_that_clears_everybody_says_on_what_premise(vault: Vault) -> None:
    unmarked, known = Oracle(vault.keyring, lambda q, v: 0), Premise(surviving=0.45, measured=True)
    verdict = trace(unmarked, vault.keyring, premise=known, false_accusation=0.3)
    assert verdict.finding == "nobody"
    bundle = make_bundle(vault, verdict, suspect="model.onnx")
    found = verify_bundle(bundle)
    assert found.premise == known
    assert any("survives in 45 % of the questions (as was measured" in point for point in found.unproven)
    plain = bundle["verdict"]
    early = {name: value for name, value in plain.items() if name != "premise"}
    assert verify_bundle(resigned(bundle, vault, verdict=early)).premise == Premise()
    for premise, words in [
        ({"issued": False}, "contradicts"),
        ({"surviving": "0.01"}, "do not suffice to clear"),
        ({"surviving": "0.6"}, "well-formed"),
        ({"surviving": "0.450"}, "well-formed"),
        ({"measured": 1}, "well-formed"),
        ({"more": 1}, "well-formed"),
    ]:
        changed = plain | {"premise": plain["premise"] | premise}
        with pytest.raises(BadProof, match=words):
            verify_bundle(resigned(bundle, vault, verdict=changed))
    none = trace(unmarked, vault.keyring, premise=Premise(issued=False))
    assert verify_bundle(make_bundle(vault, none, suspect="model.onnx")).premise == Premise(issued=False)


def test_a_few_answers_clear_nobody(vault: Vault) -> None:
    few = trace(Oracle(vault.keyring, lambda q, v: 0), vault.keyring, budget=3)
    bundle = make_bundle(vault, few, suspect="model.onnx")
    with pytest.raises(BadProof, match="do not suffice to clear"):
        verify_bundle(resigned(bundle, vault, verdict=bundle["verdict"] | {"verdict": "nobody"}))


def test_tokens_and_a_single_variant(tmp_path: Path) -> None:
    keyring = ring(Tokens(12, 300), held_out_variants=1)
    with vault_of(keyring, tmp_path) as vault:
        _, bundle = case(vault, "hospital-0")
        found = verify_bundle(bundle)
        assert found.clients == ("hospital-0",)
        # Nothing was chosen from the pool, so nobody needs to be believed about it.
        assert not any("chosen" in sentence for sentence in found.unproven)
        step = bundle["transcript"][4]
        tokens = np.frombuffer(base64.b64decode(step["input"]), bundle["input"]["dtype"])
        assert (tokens == keyring.raw([step["question"]], "held-out")[0, 0].numpy()).all()


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    keyring = ring(Vectors(1), clients=["a", "b"], classes=200, questions=2, pool=2, held_out_variants=1)
    with vault_of(keyring, tmp_path) as vault:
        _, bundle = case(vault, "b", false_accusation=0.02)
    text = canonical(bundle)
    assert verify_bundle(text).clients == ("b",)
    unnoticed = []
    for place in range(len(text)):
        for flip in (1, 0x20, 0xFF):
            changed = bytearray(text)
            changed[place] ^= flip
            try:
                verify_bundle(bytes(changed))
            except BadProof:
                continue
            unnoticed.append((place, flip))
    assert unnoticed == []
    for other in (
        text + b"\n",
        b" " + text,
        text[:-1],
        text.replace(b",", b", ", 1),
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"NaN",
    ):
        with pytest.raises(BadProof):
            verify_bundle(other)
    with pytest.raises(BadProof):
        verify_bundle(b"[" * 100_000)


def test_another_key_is_noticed_by_whoever_knows_the_right_one(vault: Vault, tmp_path: Path) -> None:
    """A whole vault made up to fit the suspect is in order by itself: only the published key tells."""
    published = read_published((vault.path / PUBLIC).read_bytes())
    key = vault.commitments[0].public_key
    _, bundle = case(vault, "hospital-3")
    assert "This key is the one that you gave." in verify_bundle(bundle, public_key=key).proven
    known = verify_bundle(bundle, published=published)
    assert len(known.unproven) < len(verify_bundle(bundle).unproven)
    keyring = vault.keyring
    with vault_of(keyring, tmp_path) as other:
        forged = make_bundle(other, trace(leaked_by(keyring, "hospital-3"), keyring), suspect="model.onnx")
        assert verify_bundle(forged).fingerprint != fingerprint(key)
        with pytest.raises(BadProof, match="another key"):
            verify_bundle(forged, public_key=key)
        with pytest.raises(BadProof, match="published"):
            verify_bundle(forged, published=published)
        with pytest.raises(BadProof, match="signature"):
            verify_bundle(resigned(bundle, other))
    with pytest.raises(BadProof, match=r"commitment\.json"):
        read_published(b"{}")


def test_the_number_of_clients_cannot_be_understated(vault: Vault) -> None:
    published = read_published((vault.path / PUBLIC).read_bytes())
    _, bundle = case(vault, "hospital-3")
    fewer = resigned(
        bundle,
        vault,
        commitments=bundle["commitments"][:2],
        parameters=bundle["parameters"] | {"clients": 10},
    )
    assert verify_bundle(fewer).federation == 10
    with pytest.raises(BadProof, match="leaves out"):
        verify_bundle(fewer, published=published)
    with pytest.raises(BadProof, match="parameters"):
        verify_bundle(resigned(bundle, vault, parameters=bundle["parameters"] | {"clients": 1}))
    assert verify_bundle(bundle, published=published[:2]).federation == 11


def claim(bundle: dict[str, Any], *clients: str) -> dict[str, Any]:
    return {**bundle["verdict"], "clients": list(clients), "verdict": "client" if len(clients) == 1 else "several"}


def test_the_vaults_holder_cannot_accuse_an_innocent(vault: Vault) -> None:
    """Even with the true key: the answers that would convict are not those that were committed to."""
    _, bundle = case(vault, "hospital-3")
    asked = [step["question"] for step in bundle["transcript"]]
    innocent = vault.prove_answers("hospital-4", asked)
    guilty = bundle["answers"][0]
    forgeries: dict[str, dict[str, Any]] = {
        "does not suffice": {"verdict": claim(bundle, "hospital-4"), "answers": [innocent]},
        "suffice to accuse 'hospital-4'": {
            "verdict": claim(bundle, "hospital-3", "hospital-4"),
            "answers": [guilty, innocent],
        },
        "not those of the accused": {"verdict": claim(bundle, "hospital-4")},
        "not of one client": {"verdict": claim(bundle, "hospital-4"), "answers": [guilty | {"client": "hospital-4"}]},
        "to the questions that were asked": {"answers": [vault.prove_answers("hospital-3", asked[1:])]},
        "contradicts": {"verdict": bundle["verdict"] | {"verdict": "nobody"}},
    }
    for message, changes in forgeries.items():
        with pytest.raises(BadProof, match=message):
            verify_bundle(resigned(bundle, vault, **changes))


def test_questions_cannot_be_picked_to_fit(vault: Vault) -> None:
    """What an innocent happens to match could be shown alone, or asked first; the rule forbids it."""
    keyring = vault.keyring
    verdict = trace(Oracle(keyring, lambda q, v: 7), keyring)
    bundle = make_bundle(vault, verdict, suspect="always says 7")
    steps = bundle["transcript"]
    answers = {step["question"]: a for step, a in zip(steps, keyring.key("hospital-6").answers, strict=False)}
    fitting = [step for step in steps if answers[step["question"]] == step["answer"]]
    others = [step for step in steps if step not in fitting]
    for picked in (fitting, fitting + others, steps[1:], [*steps, steps[0]], [steps[0], *steps]):
        with pytest.raises(BadProof, match="rule"):
            verify_bundle(resigned(bundle, vault, transcript=picked))


def test_a_choice_of_questions_that_came_late_is_told(tmp_path: Path) -> None:
    """With the suspect's answers at hand one could choose questions that anybody matches: when it was done counts."""
    keyring = ring()
    with vault_of(keyring, tmp_path) as vault:
        before = read_published((vault.path / PUBLIC).read_bytes())
        vault.save_keyring(keyring.choose(range(39, 15, -1)))
        _, bundle = case(vault, "hospital-3")
        after = read_published((vault.path / PUBLIC).read_bytes())
        late = "before the suspect was asked"
        assert not any(late in point for point in verify_bundle(bundle, published=after).unproven)
        assert any(late in point for point in verify_bundle(bundle, published=before).unproven)
        with pytest.raises(BadProof, match="rule"):
            verify_bundle(resigned(bundle, vault, commitments=bundle["commitments"][:1]))


def test_inputs_that_were_not_committed_to_are_noticed(vault: Vault) -> None:
    _, bundle = case(vault, "hospital-3")
    steps = bundle["transcript"]
    other = [steps[0] | {"input": steps[1]["input"]}, *steps[1:]]
    for changes in ({"transcript": other}, {"input": {"dtype": "uint8", "shape": [24]}}):
        with pytest.raises(BadProof, match="inputs"):
            verify_bundle(resigned(bundle, vault, **changes))
    with pytest.raises(BadProof, match="well-formed"):
        verify_bundle(resigned(bundle, vault, transcript=[steps[0] | {"input": "?"}, *steps[1:]]))


def test_questions_of_a_later_commitment_are_not_accepted(tmp_path: Path) -> None:
    """They could have been made to fit, once the suspect's habits were known."""
    keyring = ring()
    with vault_of(keyring, tmp_path) as vault:
        _, bundle = case(vault, "hospital-3")
        key = Ed25519PrivateKey.from_private_bytes(vault.storage.get(SIGNING))
        joined, [first] = keyring.join("eve"), vault.commitments
        fresh, _ = commit(replace(joined, secret=b"made afterwards!" * 2), key, vault=vault.id, time=first.time)
        later = replace(fresh, number=2, previous=first.digest, clients=(10, fresh.clients[1]), signature="")
        later = replace(later, signature=sign(key, "commitment", later.body))
        with pytest.raises(BadProof, match="adds questions"):
            verify_bundle(resigned(bundle, vault, commitments=[first.to_dict(), later.to_dict()]))


@pytest.mark.parametrize(
    "changes",
    [
        {"transcript": []},
        {"transcript": None},
        {"parameters": {}},
        {"input": []},
        {"questions": {"commitment": 1, "questions": []}},
        {"commitments": []},
        {"answers": 3},
        {"suspect": 3},
        {"time": "yesterday"},
        {"time": "2026-01-01T00:00:00"},
        {"more": 1},
        {"format": "tramark evidence 2"},
    ],
    ids=str,
)
def test_malformed_bundles_are_bad_proofs(vault: Vault, changes: dict[str, Any]) -> None:
    _, bundle = case(vault, "hospital-3")
    with pytest.raises(BadProof):
        verify_bundle(resigned(bundle, vault, **changes))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values are in a nest of lists and dicts, the nests themselves included."""
    yield path
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, name))


STRANGE: list[Any] = [None, True, -1, 2**31, 2**70, 0.5, "", "é\ud800", [], [[]], {}, {"question": 0}]


def test_whatever_the_keys_holder_changes_is_a_bad_proof_or_a_mere_description(tmp_path: Path) -> None:
    """And nothing else than `BadProof` is ever raised."""
    keyring = ring(Vectors(1), clients=["a", "b"], classes=200, questions=2, pool=2, held_out_variants=2)
    accepted = set()
    with vault_of(keyring, tmp_path) as vault:
        _, bundle = case(vault, "b", false_accusation=0.001)
        for path in leaves({name: value for name, value in bundle.items() if name != "signature"}):
            for other in STRANGE if path else []:
                changed = json.loads(canonical(bundle))
                inside = changed
                for name in path[:-1]:
                    inside = inside[name]
                inside[path[-1]] = other
                try:
                    verify_bundle(resigned(changed, vault))
                except BadProof:
                    continue
                if canonical(changed) != canonical(bundle):
                    accepted.add(path)
    assert accepted == {("suspect",), ("notes",)}


@pytest.mark.parametrize("bound", ["0.0", "1.0", "nan", "inf", "1e-6", "-1e-06", " 1e-06", 1e-6])
def test_a_strange_bound_is_a_bad_proof(vault: Vault, bound: Any) -> None:
    _, bundle = case(vault, "hospital-3")
    parameters = bundle["parameters"] | {"false_accusation_bound": bound}
    with pytest.raises(BadProof):
        verify_bundle(resigned(bundle, vault, parameters=parameters))


def test_a_stricter_bound_than_the_evidence_reaches_is_noticed(vault: Vault) -> None:
    _, bundle = case(vault, "hospital-3")
    with pytest.raises(BadProof, match="does not suffice"):
        verify_bundle(resigned(bundle, vault, parameters=bundle["parameters"] | {"false_accusation_bound": "1e-12"}))


def test_no_bundle_for_what_cannot_be_proven(vault: Vault) -> None:
    verdict, _ = case(vault, "hospital-3")
    paper = trace(leaked_by(vault.keyring, "hospital-3"), vault.keyring, rule="paper")
    with pytest.raises(ValueError, match="no bound"):
        make_bundle(vault, paper, suspect="model.onnx")
    with pytest.raises(ValueError, match="nothing was asked"):
        make_bundle(vault, replace(verdict, transcript=()), suspect="model.onnx")
    with pytest.raises(ValueError, match="does not follow"):
        make_bundle(vault, replace(verdict, clients=("hospital-4",)), suspect="model.onnx")


def test_a_bundle_tells_nothing_else(vault: Vault) -> None:
    verdict, bundle = case(vault, "hospital-3")
    text = canonical(bundle)
    assert not [secret for secret in hidden(vault, verdict) if secret in text]
    assert [name for name in vault.keyring.clients if name.encode() in text] == ["hospital-3"]
    # The shown digests are of what was asked, and the accused's answers are to that alone.
    questions = {step.question for step in verdict.transcript}
    assert {part["question"] for part in bundle["questions"]["questions"]} == questions
    assert all(len(part["variants"]) == 1 for part in bundle["questions"]["questions"])
    assert {answer["question"] for answer in bundle["answers"][0]["answers"]} == questions
