"""What a round did must be said in words, and what went wrong with it must be warned of."""

from dataclasses import asdict, replace

import pytest
import torch

from tramark.marks.injection import CARRIED, Made, made_of
from tramark.marks.rounds import RoundReport
from tramark.marks.search import AnswerSheet
from tramark.marks.survival import Survived

MADE = Made(("fc1", "fc2"), 16, 6.25, 1.0, 0.0042)
REPORT = RoundReport(7, ("a", "b"), marked=True, survived=Survived({"a": 1.0, "b": 0.5}, 3.14, 0.5), made=MADE)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (RoundReport(1, ("a",)), "round 1: 1 updates used, not marked yet"),
        (RoundReport(1, (), {"b": "too late"}, begins_after=3), "refused b (too late), marks begin after round 3"),
        (RoundReport(2, ("a",), marked=True), "round 2: 1 updates used, marked"),
        (REPORT, "75% of the answers were left, 50% at the least, with a margin of 3.1, marked in fc1 and fc2"),
        (REPORT, "marked in fc1 and fc2: 16 questions, margin 6.2, cost 0.004"),
        (replace(REPORT, made=replace(MADE, reached=0.8)), "cost 0.004, 80% of them answered"),
        (replace(REPORT, survived=Survived({"a": 0.1}, -2.0, told=2.31)), "scores tell 2.3 times what names a client"),
        (replace(REPORT, made=replace(MADE, unmarked=("b", "c"))), "cost 0.004, without a mark: b, c"),
    ],
)
def test_a_report_says_what_the_round_did(report: RoundReport, words: str) -> None:
    assert str(report).endswith(words) or words in str(report)


def test_what_went_wrong_is_a_concern() -> None:
    assert REPORT.concerns(classes=10) == []
    [concern] = replace(REPORT, made=replace(MADE, reached=0.8)).concerns(classes=10)
    assert concern.startswith("round 7: the models that are sent next give 80% of their answers: ")
    for remedy in ("More warm-up", "Keyring.generate(questions=…)", "ClosedForm(layer_names=…)"):
        assert remedy in concern
    [concern] = replace(REPORT, made=replace(MADE, unmarked=("b",))).concerns(classes=10)
    assert "those of b carry no mark and cannot be traced" in concern
    worn = replace(REPORT, survived=Survived({"a": 0.5}, 0.1))
    assert len(worn.concerns(classes=10)) == 1
    assert worn.concerns(classes=100) == worn.concerns(classes=10)
    assert len(replace(worn, survived=Survived({"a": 0.7}, 0.1)).concerns(classes=2)) == 1, "one in two is chance"


def test_a_client_whose_model_gives_too_few_answers_is_not_marked() -> None:
    answers = torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1], [-1, -1, 2, 3]])
    sheet = AnswerSheet(torch.zeros(8, 1), torch.arange(4).repeat_interleave(2), answers)
    led = torch.full((3, 8), 2.0)
    led[1, :3] = -1.0  # five of eight are right
    led[2, :5] = -1.0  # three of the four that count: the others are not asked of this client
    made = made_of(led, sheet, ["fc"], ["a", "b", "c"], 0.5)
    assert 5 / 8 < CARRIED <= 3 / 4
    assert (made.layers, made.questions, made.margin, made.cost) == (("fc",), 4, 2.0, 0.5)
    assert made.unmarked == ("b",)
    assert made.reached == pytest.approx((1 + 5 / 8 + 3 / 4) / 3)
    assert Made.from_dict(asdict(made) | {"layers": ["fc"], "unmarked": ["b"]}) == made
