"""A commitment can be opened in part, by anybody, and never otherwise than it was made."""

import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import traces
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tramark.errors import BadProof
from tramark.evidence.commitment import (
    Commitment,
    array_digest,
    canonical,
    sign,
    verify_answers,
    verify_chain,
    verify_questions,
    verify_signature,
)
from tramark.evidence.merkle import MerkleTree, climb, leaf_hash, node_hash, root_of
from tramark.keys.keyring import Keyring
from tramark.keys.pictures import Patterns
from tramark.vault.branches import answers_of, tensor_digest, top_leaves, variants_of
from tramark.vault.commit import chain_text, commit, prove_answers, prove_questions, read_chain, state_digest

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def ring(**options: object) -> Keyring:
    defaults = {"clients": ["alice", "bob", "carol"], "questions": 3, "pool": 7}
    made = traces.ring(Patterns((1, 6, 6)), **{**defaults, **options})
    return made.choose([5, 0, 2]) if made.assignment == "code" else made


def naive_root(leaves: list[bytes]) -> bytes:
    """The definition in RFC 6962, word for word."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(naive_root(leaves[:split]), naive_root(leaves[split:]))


@given(st.integers(1, 70))
def test_the_tree_is_that_of_the_rfc_and_every_leaf_has_its_path(size: int) -> None:
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    tree = MerkleTree(leaves)
    assert tree.root == naive_root(leaves)
    for index, leaf in enumerate(leaves):
        assert climb(leaf, index, size, tree.path(index)) == tree.root


@given(st.integers(2, 40), st.data())
def test_a_path_serves_one_leaf_at_one_place_only(size: int, data: st.DataObject) -> None:
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    tree = MerkleTree(leaves)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size - 1).filter(lambda i: i != index))

    def reaches(leaf: bytes, place: int, count: int, path: list[bytes]) -> bool:
        try:
            return climb(leaf, place, count, path) == tree.root
        except BadProof:
            return False

    path = tree.path(index)
    assert not reaches(leaves[other], index, size, path)
    assert not reaches(leaves[index], other, size, path)
    assert not reaches(leaves[index], index, size, path[:-1])
    assert not reaches(leaves[index], index, size, [*path, path[-1]])
    assert not reaches(leaves[index], index + size, size, path)


def test_lists_that_differ_by_a_repeated_leaf_have_different_roots() -> None:
    leaves = [leaf_hash(bytes([i])) for i in range(3)]
    assert MerkleTree(leaves).root != MerkleTree([*leaves, leaves[-1]]).root


def test_a_node_cannot_be_passed_off_as_a_leaf() -> None:
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(left + right) != node_hash(left, right)


@pytest.mark.parametrize("assignment", ["code", "label"])
def test_openings_show_the_answers_and_the_questions(assignment: str) -> None:
    keyring = ring(assignment=assignment)
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    verify_chain([commitment])
    for client in keyring.clients:
        key = keyring.key(client)
        proof = json.loads(json.dumps(prove_answers(keyring, client, key.questions, commitment, leaves)))
        assert verify_answers(proof, [commitment]) == dict(zip(key.questions, key.answers, strict=True))
        held_out = range(keyring.train_variants, keyring.train_variants + 2)
        proof = prove_questions(keyring, dict.fromkeys(key.questions, held_out), commitment, leaves)
        shown = verify_questions(json.loads(json.dumps(proof)), [commitment])
        raw = keyring.raw(key.questions, "held-out")
        for number, question in enumerate(key.questions):
            for variant in range(2):
                picture = raw[number, variant]
                digest = array_digest("uint8", picture.shape, picture.numpy().tobytes())
                assert shown[question, held_out[variant]] == digest


def test_an_opening_holds_nothing_but_what_it_opens() -> None:
    keyring = ring()
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    text = json.dumps(prove_answers(keyring, "bob", [2, 5], commitment, leaves))
    salts = {client: answers_of(keyring, client).salts for client in keyring.clients}
    chosen = list(enumerate(keyring.chosen))
    shown = [(name, q) for name in keyring.clients for place, q in chosen if salts[name][place].hex() in text]
    assert sorted(shown) == [("bob", 2), ("bob", 5)]
    assert "alice" not in text
    assert keyring.secret.hex() not in text


def test_no_two_leaves_have_the_same_salt() -> None:
    keyring = ring()
    salts = [s for client in keyring.clients for s in answers_of(keyring, client).salts]
    salts += [s for question in range(7) for s in variants_of(keyring, question).salts]
    assert len(set(salts)) == len(salts) == 3 * 3 + 7 * 4
    # Not even if a question gets another place, or a place another question.
    other = keyring.choose([0, 5, 1])
    salts += [s for client in other.clients for s in answers_of(other, client).salts]
    assert len(set(salts)) == len(salts)


def mutations(value: object) -> list[object]:
    """The value with one thing in it changed, in all the ways that a file could be changed."""
    if isinstance(value, dict):
        changed = [{**value, name: other} for name, part in value.items() for other in mutations(part)]
        return [*changed, *({k: v for k, v in value.items() if k != name} for name in value)]
    if isinstance(value, list):
        changed_items = [
            [*value[:i], other, *value[i + 1 :]] for i, part in enumerate(value) for other in mutations(part)
        ]
        return [
            *changed_items,
            *([*value[:i], *value[i + 1 :]] for i in range(len(value))),
            [*value, *value[-1:]],
        ]
    if isinstance(value, int):
        return [value + 1, value - 1, 2**32, -1, str(value), None, float("nan")]
    assert isinstance(value, str)
    return [*({value[:-1], "z" * len(value), value.upper()} - {value}), value + "0", value + " ", 7, None]


def test_whatever_is_changed_in_an_opening_of_answers_is_noticed() -> None:
    keyring = ring()
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    proof = prove_answers(keyring, "bob", [2, 5], commitment, leaves)
    right = verify_answers(proof, [commitment])
    for wrong in mutations(proof):
        assert isinstance(wrong, dict)
        try:
            shown = verify_answers(wrong, [commitment])
        except BadProof:
            continue
        # Showing fewer of the committed answers is all that can be done.
        assert shown.items() < right.items()
        assert wrong["client"] == "bob"


def test_whatever_is_changed_in_an_opening_of_questions_is_noticed() -> None:
    keyring = ring()
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    first = keyring.train_variants
    proof = prove_questions(keyring, {1: [first, first + 2], 6: [first + 3]}, commitment, leaves)
    right = verify_questions(proof, [commitment])
    for wrong in mutations(proof):
        assert isinstance(wrong, dict)
        try:
            shown = verify_questions(wrong, [commitment])
        except BadProof:
            continue
        assert shown.items() < right.items()


def test_whatever_is_changed_in_a_commitment_is_noticed() -> None:
    commitment, _ = commit(ring(), KEY, vault="v", time="t")
    for wrong in mutations(commitment.to_dict()):
        with pytest.raises(BadProof):
            verify_chain([Commitment.from_dict(wrong)])  # type: ignore[arg-type]


def test_clients_that_join_later_are_committed_in_a_chain() -> None:
    keyring = ring()
    first, leaves = commit(keyring, KEY, vault="v", time="t")
    larger = keyring.join("dave").join("erin")
    second, more = commit(larger, KEY, vault="v", time="u", after=first)
    third, _ = commit(larger.join("frank"), KEY, vault="v", time="w", after=second)
    verify_chain([first, second, third])
    proof = prove_answers(larger, "erin", [0], second, more)
    assert verify_answers(proof, [first, second, third]) == {0: int(larger.codebook([0])[4, 0])}
    with pytest.raises(ValueError, match="'erin' is not in commitment 1"):
        prove_answers(larger, "erin", [0], first, leaves)
    stranger, _ = commit(larger, Ed25519PrivateKey.generate(), vault="v", time="u", after=first)
    for broken in ([], [second], [first, third], [second, first], [first, second, second], [first, stranger]):
        with pytest.raises(BadProof):
            verify_chain(broken)


def test_other_questions_are_committed_to_for_everybody_and_only_the_last_choice_counts() -> None:
    keyring = ring()
    first, leaves = commit(keyring, KEY, vault="v", time="t")
    other = keyring.join("dave").choose([6, 2, 1])
    second, more = commit(other, KEY, vault="v", time="u", after=first)
    third, last = commit(other.join("erin"), KEY, vault="v", time="w", after=second)
    assert (second.clients, third.clients) == ((0, 4), (4, 1))
    chain = [first, second, third]
    verify_chain(chain)
    opened = prove_answers(other, "alice", [6, 1], second, more)
    assert verify_answers(opened, chain) == dict(zip([6, 1], other.codebook([6, 1])[0].tolist(), strict=True))
    assert verify_answers(prove_answers(other.join("erin"), "erin", [2], third, last), chain)
    old = prove_answers(keyring, "alice", [2], first, leaves)
    assert verify_answers(old, [first])
    with pytest.raises(BadProof, match="replaced"):
        verify_answers(old, chain)
    with pytest.raises(ValueError, match="not among the 3"):
        prove_answers(other, "alice", [0], second, more)
    for clients in ((3, 1), (0, 2)):
        unsigned = replace(second, clients=clients)
        with pytest.raises(BadProof, match="does not follow"):
            verify_chain([first, replace(unsigned, signature=sign(KEY, "commitment", unsigned.body))])


@pytest.mark.parametrize("questions", [range(7), [6, 2, 1], [5]])
def test_many_clients_leaves_are_those_of_each(questions: Sequence[int]) -> None:
    keyring = ring().join("dave", "erin")
    each = [answers_of(keyring, client, questions).top_leaf for client in keyring.clients]
    assert b"".join(top_leaves(keyring, range(5), questions)) == b"".join(each)
    assert b"".join(top_leaves(keyring, range(2, 4), questions)) == b"".join(each[2:4])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_many_leaves_have_the_root_of_their_tree(count: int) -> None:
    leaves = [leaf_hash(bytes([number])) for number in range(count)]
    assert root_of(b"".join(leaves)) == MerkleTree(leaves).root


def test_the_chain_of_commitments_is_canonical_json() -> None:
    chain = [commit(ring(), KEY, vault="v", time="t")]
    text = chain_text(chain)
    assert canonical(json.loads(text)) == text
    assert read_chain(text) == chain


def test_a_vault_that_committed_to_all_of_the_pool_goes_on_so() -> None:
    keyring = ring()
    new, _ = commit(keyring, KEY, vault="v", time="t")
    pool = [answers_of(keyring, client, range(7)).top_leaf for client in keyring.clients]
    pool += [variants_of(keyring, question).top_leaf for question in range(7)]
    unsigned = replace(new, answers="", root=MerkleTree(pool).root.hex())
    first = replace(unsigned, signature=sign(KEY, "commitment", unsigned.body))
    other = keyring.join("dave").choose([6, 2, 1])
    second, more = commit(other, KEY, vault="v", time="u", after=first)
    verify_chain([first, second])
    assert (second.answers, second.clients) == ("", (3, 1))
    for client, link, leaves in (("alice", first, b"".join(pool)), ("dave", second, more)):
        proof = prove_answers(other, client, [4, 6], link, leaves)
        assert proof["count"] == 7
        row = other.codebook([4, 6])[other.clients.index(client)].tolist()
        assert verify_answers(proof, [first, second]) == dict(zip([4, 6], row, strict=True))


def test_one_clients_opening_does_not_serve_another() -> None:
    keyring = ring()
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    proof = prove_answers(keyring, "bob", [2], commitment, leaves)
    framed = copy.deepcopy(proof) | {"client": "alice", "index": 0}
    with pytest.raises(BadProof):
        verify_answers(framed, [commitment])


def test_a_signature_is_good_for_one_purpose_only() -> None:
    public = KEY.public_key().public_bytes_raw().hex()
    signature = sign(KEY, "evidence", b"text")
    verify_signature(public, "evidence", b"text", signature)
    for purpose, message in (("commitment", b"text"), ("evidence", b"texts")):
        with pytest.raises(BadProof):
            verify_signature(public, purpose, message, signature)


def test_a_states_digest_tells_names_types_shapes_and_values_apart() -> None:
    state = {
        "w": torch.arange(6.0).reshape(2, 3),
        "steps": torch.tensor(3),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    others = [
        {**state, "w": state["w"].reshape(3, 2)},
        {**state, "w": state["w"] + 1e-7},
        {**state, "w": state["w"].int()},
        {"v" if name == "w" else name: tensor for name, tensor in state.items()},
    ]
    digests = {state_digest(s) for s in (state, *others)}
    assert len(digests) == 5
    assert state_digest(dict(reversed(state.items()))) == state_digest(state)
    assert state_digest({**state, "w": state["w"].T.contiguous().T}) == state_digest(state)
    known = {"w": tensor_digest(state["w"])}
    assert state_digest(state, known=known) == state_digest(state)


def test_evidence_is_checked_without_torch() -> None:
    keyring = ring()
    commitment, leaves = commit(keyring, KEY, vault="v", time="t")
    proof = prove_answers(keyring, "bob", [2, 5], commitment, leaves)
    script = """
import json, sys
sys.modules["torch"] = None
from tramark.evidence.commitment import Commitment, verify_answers, verify_chain
commitment, proof = json.load(sys.stdin)
chain = [Commitment.from_dict(commitment)]
verify_chain(chain)
assert sorted(verify_answers(proof, chain)) == [2, 5]
"""
    given = json.dumps([commitment.to_dict(), proof])
    subprocess.run([sys.executable, "-c", script], input=given, text=True, check=True)


def test_the_commitment_does_not_depend_on_who_is_away() -> None:
    keyring = ring()
    roots = {commit(k, KEY, vault="v", time="t")[0].root for k in (keyring, keyring.leave("bob"))}
    assert len(roots) == 1
    assert commit(replace(keyring, secret=b"t" * 32), KEY, vault="v", time="t")[0].root not in roots
