"""When marks begin: at half time, when the base moves slowly, or as told."""

import pytest

from tramark.errors import SettingError
from tramark.marks.begin import Beginning, begin_after


def test_every_length_of_training_has_a_warm_up_and_marked_rounds() -> None:
    for rounds in range(2, 601):
        after = begin_after("auto", rounds)
        assert 1 <= after <= 25
        assert after == 25 or rounds / 2 - 1 < after <= rounds / 2
        assert rounds - after >= (3 if rounds > 5 else 1)
        beginning = Beginning("auto", rounds)
        assert [beginning.due(round) for round in (after - 1, after)] == [False, True]


@pytest.mark.parametrize(
    ("sizes", "begins"),
    [
        ([8, 1, 1, 1], 3),
        ([8, 1, 3, 2, 1, 1], 5),
        ([1, 8, 4, 2, 2], 5),
        ([8, 2, 3, 40, 9, 9, 10, 10], 6),
        ([0, 0, 0, 0], 3),
        ([5] * 30, 25),
    ],
)
def test_without_a_number_of_rounds_two_slow_ones_begin(sizes: list[float], begins: int) -> None:
    beginning = Beginning("auto")
    assert beginning.after is None
    for round, size in enumerate(sizes, 1):
        beginning.observe(size)
        if beginning.due(round):
            break
    assert round == begins


def test_what_was_observed_is_taken_up_again() -> None:
    first, second, forgetful = Beginning("auto"), Beginning("auto"), Beginning("auto")
    for size in (8.0, 4.0, 2.0):
        first.observe(size)
    second.load_state_dict(first.state_dict())
    forgetful.load_state_dict({})
    for beginning in (second, forgetful):
        beginning.observe(1.9)
    assert second.due(4)
    assert not forgetful.due(4)


@pytest.mark.parametrize(("warmup", "rounds"), [(6, 6), (25, 6), (1, 1), ("auto", 1)])
def test_a_training_without_a_marked_round_is_refused(warmup: int, rounds: int) -> None:
    with pytest.raises(SettingError, match=f"warm-up rounds of {rounds}: .* no model is marked"):
        Beginning(warmup, rounds)
    with pytest.raises(SettingError, match="no model is marked"):
        Beginning(warmup).expect(rounds)


@pytest.mark.parametrize("warmup", [-1, "soon", 2.5, None])
def test_a_strange_warm_up_is_refused(warmup: int) -> None:
    with pytest.raises(SettingError, match=r"fewer than none.*'auto'"):
        Beginning(warmup)
