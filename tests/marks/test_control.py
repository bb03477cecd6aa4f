"""The margin must follow what survives and what it costs, and no single client may drive it."""

import math
from dataclasses import replace

import pytest

from tramark.marks.closed_form import ClosedForm
from tramark.marks.control import (
    BRAKE,
    CHEAP,
    DEAR,
    FALL,
    FREE,
    LEAST,
    MOST,
    PATIENCE,
    PLENTY,
    RESERVE,
    RISE,
    steer,
    within,
)
from tramark.marks.injection import Made, Plan
from tramark.marks.survival import Survived

PLAN = Plan(("fc",), 8.0, FREE)


def made(margin: float = 8.0, cost: float = 0.005) -> Made:
    return Made(("fc",), 16, margin, 1.0, cost)


def left(low: float) -> Survived:
    return Survived({"a": 1.0}, low + 2, low)


def test_a_margin_that_is_worn_down_rises_by_a_bounded_factor_a_round() -> None:
    assert steer(PLAN, made(), left(low=-1.0)).margin == pytest.approx(RESERVE * 9.0)
    assert steer(PLAN, made(), left(low=-50.0)).margin == RISE * 8.0
    plan = PLAN
    for _ in range(20):
        plan = steer(plan, made(plan.margin), left(low=-1e6))
    assert plan.margin == MOST


def test_a_margin_that_is_not_needed_falls_slowly_and_not_below_the_least() -> None:
    plan = steer(PLAN, made(), left(low=7.5))
    assert plan.margin == FALL * 8.0
    for _ in range(100):
        plan = steer(plan, made(plan.margin), left(low=plan.margin))
    assert plan.margin == LEAST


def test_cheap_marks_get_more_margin_than_they_need() -> None:
    dear, cheap = (steer(PLAN, made(cost=cost), left(low=4.0)).margin for cost in (FREE, CHEAP / 100))
    assert dear == FALL * 8.0
    assert cheap == PLENTY * 4.0


def test_what_was_made_counts_not_what_was_planned() -> None:
    """A layer that bore half of the margin is not asked for more than a factor above that."""
    assert steer(PLAN, made(margin=4.0), left(low=-50.0)).margin == RISE * 4.0


def test_a_margin_settles_where_training_leaves_just_enough() -> None:
    """Training takes six logits, whatever the margin is."""
    plan = PLAN
    for _ in range(100):
        plan = steer(plan, made(plan.margin), left(low=plan.margin - 6.0))
    assert plan.margin == pytest.approx(RESERVE * 6.0, rel=0.05)
    assert plan.limit == FREE


def test_marks_may_cost_more_while_too_little_survives_and_less_again_afterwards() -> None:
    plan, limits = PLAN, []
    for low in (-1.0, -1.0, -1.0, -1.0, 1.0, 1.0):
        plan = steer(plan, made(), left(low))
        limits.append(plan.limit)
    assert limits[:4] == sorted(limits[:4])
    assert max(limits) == DEAR
    assert limits[3] > limits[4] > limits[5]
    for _ in range(30):
        plan = steer(plan, made(), left(low=1.0))
    assert plan.limit == FREE


def test_what_does_not_help_is_not_paid_for_until_something_survives_again() -> None:
    plan, limits = PLAN, []
    hardly = replace(left(low=-1.0), clients={"a": 0.3})
    for _ in range(20):
        plan = steer(plan, made(), hardly)
        limits.append(plan.limit)
    assert limits.count(DEAR) == PATIENCE
    assert set(limits[-10:]) == {FREE}
    plan = steer(steer(plan, made(), left(low=1.0)), made(), left(low=-1.0))
    assert plan.limit > FREE


def test_marks_that_scores_tell_need_not_cost_more() -> None:
    plan = replace(PLAN, limit=DEAR)
    for _ in range(20):
        plan = steer(plan, made(), replace(left(low=-1.0), clients={"a": 0.3}, told=RESERVE))
    assert (plan.limit, plan.vain) == (FREE, 0)
    assert steer(plan, made(), replace(left(low=-1.0), told=0.9 * RESERVE)).limit > FREE


def test_what_leaves_half_of_the_answers_is_not_given_up() -> None:
    plan = PLAN
    for _ in range(20):
        plan = steer(plan, made(), replace(left(low=-1.0), clients={"a": 0.6}))
    assert plan.limit == DEAR


def test_a_margin_comes_down_to_what_it_may_cost() -> None:
    assert within(0.04, 0.0, FREE) == pytest.approx(0.5), "half of the margin costs a quarter"
    assert within(0.0, 0.0, FREE) == within(FREE, BRAKE, FREE) == 1.0
    assert within(0.0, 2 * BRAKE, FREE) == pytest.approx(0.5), "and strains half as much"
    assert within(9.0, 9.0, math.inf) == 1.0


def test_marks_that_disturb_training_may_cost_less() -> None:
    calm = replace(PLAN, calm=1.0)
    wild = replace(left(low=-1.0), moved=2.0)
    assert steer(calm, made(), wild).limit < FREE
    assert steer(calm, made(), wild).margin <= 8.0
    assert steer(calm, made(), replace(wild, moved=1.1)).limit > FREE
    assert steer(PLAN, made(), wild).limit > FREE, "nothing is known of updates without marks"


def test_a_margin_that_was_fixed_stays() -> None:
    assert ClosedForm(margin=3.0).steer(PLAN, made(), left(low=-50.0)) is PLAN
    assert ClosedForm().steer(PLAN, made(), left(low=-50.0)).margin == RISE * 8.0


def test_a_plan_comes_back_from_plain_values() -> None:
    plan = replace(PLAN, layers=("a", "b"), margin=3.5)
    assert Plan.from_dict(plan.to_dict() | {"layers": ["a", "b"]}) == plan
