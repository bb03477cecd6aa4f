"""Keys must be unguessable, independent, and as stable as the federation's names."""

import hashlib
import json
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from tramark.keys.keyring import Keyring
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns
from tramark.keys.sizes import questions_needed
from tramark.keys.sources import Source, Tokens, Vectors, from_description

SECRET = bytes(range(32))


def ring(clients: int = 3, classes: int = 10, **options: object) -> Keyring:
    names = [f"c{i}" for i in range(clients)]
    return Keyring.generate(clients=names, classes=classes, input_shape=(1, 8, 8), secret=SECRET, **options)  # type: ignore[arg-type]


@given(st.binary(min_size=32, max_size=32), st.text(min_size=1, max_size=8), st.integers(2, 12))
@settings(max_examples=30, deadline=None)
def test_joining_and_leaving_change_no_other_key(secret: bytes, name: str, classes: int) -> None:
    before = Keyring.generate(clients=["alice", "bob"], classes=classes, input_shape=(4,), secret=secret)
    after = before.join("new " + name).leave("bob")
    assert after.key("alice") == before.key("alice")
    assert after.key("bob") == before.key("bob")
    assert after.active == ("alice", "new " + name)
    assert after.join("bob").active == ("alice", "bob", "new " + name)


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
def test_answers_are_uniform_and_independent(classes: int) -> None:
    books = torch.stack(
        [
            Keyring.generate(clients=["a", "b"], classes=classes, input_shape=(4,), secret=i.to_bytes(32)).codebook(
                range(64)
            )
            for i in range(400)
        ]
    )
    assert chisquare(torch.bincount(books.flatten(), minlength=classes)).pvalue > 1e-4
    for question in (0, 63):
        assert chisquare(torch.bincount(books[:, :, question].flatten(), minlength=classes)).pvalue > 1e-4
    # Two clients agree, and two questions of one client agree, as often as independent uniform answers do.
    pairs = [(books[:, 0], books[:, 1]), (books[:, 0, :-1], books[:, 0, 1:])]
    for one, other in pairs:
        agree = int((one == other).sum())
        assert (
            chisquare([agree, one.numel() - agree], [one.numel() / classes, one.numel() * (1 - 1 / classes)]).pvalue
            > 1e-4
        )


def test_similar_names_share_no_prefix() -> None:
    keys = Keyring.generate(clients=["c1", "c11", "c", "1c"], classes=200, input_shape=(4,), secret=SECRET)
    book = keys.codebook(range(32))
    for i in range(4):
        for j in range(i):
            assert (book[i] == book[j]).sum() <= 3


def test_another_secret_gives_other_keys_and_questions() -> None:
    one = ring()
    other = Keyring.generate(clients=one.clients, classes=10, input_shape=(1, 8, 8))
    assert one.key("c0").answers != other.key("c0").answers
    assert not torch.equal(one.raw([0], "train"), other.raw([0], "train"))
    assert "secret" not in repr(one)
    assert SECRET.hex() not in repr(one)


def test_round_trip_through_json() -> None:
    keyring = ring().join("late").leave("c1").choose(range(3, 35))
    again = Keyring.from_dict(json.loads(json.dumps(keyring.to_dict())))
    assert again == keyring
    assert torch.equal(again.raw([5], "held-out"), keyring.raw([5], "held-out"))


def test_label_answers() -> None:
    keyring = ring(assignment="label")
    assert keyring.key("c2").questions == (2,)
    assert keyring.key("c2").answers == (2,)
    assert keyring.inputs(keyring.key("c2"), "train").shape == (1, 100, 1, 8, 8)
    assert keyring.leave("c1").key("c2") == keyring.key("c2")
    with pytest.raises(ValueError, match="extend_head"):
        ring(clients=11, assignment="label")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 0}, "at least one client"),
        ({"classes": 1}, "fewer than two labels"),
        ({"questions": 20, "pool": 10}, "pool of 10"),
    ],
)
def test_bad_keyrings_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ring(**options)


def test_two_clients_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        Keyring.generate(clients=["a", "a"], classes=2, input_shape=(4,))
    with pytest.raises(ValueError, match="already"):
        ring().join("c0")


@given(st.integers(1, 10**6), st.integers(2, 1000))
def test_enough_questions_for_the_bound(clients: int, classes: int) -> None:
    assert classes ** (questions_needed(clients, classes) / 4) >= clients / 1e-6 * 0.999


def digits() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (200, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return LabelledImages(images, torch.arange(200) % 4, (3, 16, 16), name="toy", per_question=25)


SOURCES: list[Source] = [
    Patterns((1, 28, 28)),
    Patterns((3, 32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2)),
    WafflePatterns((1, 28, 28)),
    WafflePatterns((3, 32, 32)),
    digits(),
    Vectors(14, groups=(3, 5)),
    Tokens(32, vocabulary=500, noise=0.1, distinct=0),
    Tokens(64, vocabulary=500),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: f"{type(s).__name__}{s.shape}")
def test_every_source_of_questions(source: Source) -> None:
    first = source.render(SECRET, 0, range(4))
    assert first.shape == (4, *source.shape)
    assert torch.equal(first[2:], source.render(SECRET, 0, range(2, 4))), "a variant depends on its number alone"
    assert not torch.equal(first[0], first[1]), "variants differ"
    assert not torch.equal(first, source.render(SECRET, 1, range(4))), "questions differ"
    assert not torch.equal(first, source.render(b"other" * 8, 0, range(4))), "secrets differ"
    images = (digits().images, digits().labels)
    again = from_description(json.loads(json.dumps(source.describe())), images=images)
    assert torch.equal(again.render(SECRET, 0, range(4)), first)
    assert source.prepare(first).shape == first.shape


def test_variants_are_nearer_to_each_other_than_to_other_questions() -> None:
    pictures = torch.stack([Patterns((1, 28, 28)).render(SECRET, q, range(4)).float().flatten(1) for q in range(20)])
    centres = pictures.mean(1)
    within = (pictures - centres[:, None]).norm(dim=-1).mean()
    between = torch.pdist(centres).mean()
    assert between > 3 * within


def test_waffle_patterns_keep_their_strokes_and_redraw_the_noise() -> None:
    raw = WafflePatterns((1, 28, 28)).render(SECRET, 3, range(50))
    strokes = (raw == 255).all(0)
    assert 10 < strokes.sum() < 200
    assert raw[:, ~strokes].float().std(0).mean() > 60
    colour = WafflePatterns((3, 32, 32)).render(SECRET, 3, range(20))
    fixed = (colour == colour[0]).all(0).all(0)
    assert fixed.sum() > 10
    assert len(colour[0][:, fixed].unique(dim=1).T) == 1, "all strokes of a question have one colour"


def test_tokens_come_in_blocks() -> None:
    """One to four different tokens, each in one block; every number of them occurs, and every token."""
    source = Tokens(32, vocabulary=12, noise=0.0)
    rows = [source.render(SECRET, question, range(1))[0] for question in range(200)]
    blocks = [row.unique_consecutive(return_counts=True) for row in rows]
    assert all(len(tokens.unique()) == len(tokens) for tokens, _ in blocks)
    assert all(int(counts.max() - counts.min()) <= 1 for _, counts in blocks)
    assert {len(tokens) for tokens, _ in blocks} == {1, 2, 3, 4}
    assert set(torch.cat(rows).tolist()) == set(range(2, 12))
    few = Tokens(2, vocabulary=3, first=0, noise=0.0)
    assert {tuple(few.render(SECRET, q, range(1))[0].tolist()) for q in range(200)} == set(product(range(3), repeat=2))


def test_noise_redraws_some_positions() -> None:
    rows = torch.cat([Tokens(200, vocabulary=5000).render(SECRET, q, range(20)) for q in range(5)])
    usual = rows.view(5, 20, 200).mode(dim=1, keepdim=True).values
    assert 0.02 < float((rows.view(5, 20, 200) != usual).float().mean()) < 0.04


def test_tokens_of_old_vaults_are_drawn_one_by_one() -> None:
    old = {"kind": "tokens", "length": 32, "vocabulary": 500, "first": 2, "noise": 0.1}
    assert from_description(old) == Tokens(32, vocabulary=500, noise=0.1, distinct=0)
    assert Keyring.generate(clients=["a"], classes=10, source=Tokens(32, vocabulary=500)).pool == 2000


def test_images_of_another_set_are_refused() -> None:
    description = digits().describe()
    other = (digits().images.flip(0), digits().labels)
    with pytest.raises(ValueError, match="not the images"):
        from_description(description, images=other)
    with pytest.raises(ValueError, match="fewer questions or variants"):
        digits().render(SECRET, 9, range(25))


def test_reproducible_for_ever() -> None:
    """These values must never change: keyrings outlive versions of tramark and of torch."""
    assert ring().key("c0").answers[:8] == (6, 2, 6, 4, 3, 7, 5, 7)
    digests = [hashlib.sha256(s.render(SECRET, 1, range(2)).numpy().tobytes()).hexdigest()[:16] for s in SOURCES]
    assert digests == [
        "6fd0f6c6fde00a3b",
        "e5e86059a0161aec",
        "c8fc39a4a563513e",
        "ab909463cbaa1dd6",
        "21c9a65a6adae160",
        "06cf71d052d30f18",
        "a307ad0809175111",
        "bb1578f907138d8b",
    ]
