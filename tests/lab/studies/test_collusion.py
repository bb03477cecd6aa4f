"""What the table of collusion says of verdicts, in whatever order a file has them."""

from tramark.lab.studies.collusion import CollusionStudy
from tramark.lab.studies.study import Row

VERDICTS = {"inconclusive": 1, "nobody": 2, "right": 3, "wrong": 4}
FOUND = {"name": "average", "parameters": {"colluders": 2}, "ma_before": 0.9, "ma": 0.8, "dead": False}
ROWS: list[Row] = [
    {"case": "a", "seed": 0, "settings": {"group": "ours"}, "attacks": [FOUND | {"verdicts": VERDICTS}]},
]


def test_counts_stand_under_their_names() -> None:
    heading, _, line, *_ = CollusionStudy().table(ROWS).splitlines()
    names, cells = ([cell.strip() for cell in one.strip("|").split("|")] for one in (heading, line))
    assert {name: int(cell) for name, cell in list(zip(names, cells, strict=True))[4:]} == VERDICTS


def test_the_index_has_shares() -> None:
    (one,) = CollusionStudy().glance(ROWS)
    assert one.ours == "30 / 40"
