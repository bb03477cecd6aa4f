"""The zoo's table and picture, made from rows."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tramark.lab.studies.zoo import HELD_BACK, ZOO, Federation
from tramark.lab.studies.zoo_study import Zoo

NAMES = ("easy", "dear", "faint", "broken", "secret")
FIVE = tuple(Federation(name, "digits", "mlp", 2, 200, "sgd", 0.05, 6) for name in NAMES)
ZOO_OF_FIVE = Zoo(FIVE, frozenset({"secret"}))


def row(name: str, *, seed: int = 0, difference: float = 0.0, trained: float = 1.0, **more: Any) -> dict[str, Any]:
    federation = next(one for one in ZOO_OF_FIVE.federations if one.name == name)
    return {
        "case": name,
        "seed": seed,
        "settings": asdict(federation),
        "ma_fedavg": 0.9,
        "ma_issued": 0.9 + difference / 100,
        "vr_issued": 1.0,
        "vr_trained": trained,
        "vr_scores": max(trained, 0.9),
        "left": 0.97,
        "layer": "fc1",
        "questions": 24,
        "margin": 4.0,
        "cost": 0.01,
        "seconds": 60.0,
    } | more


ROWS = [
    row("easy", difference=0.12),
    row("dear", difference=-1.5),
    row("faint", trained=0.5, left=0.6, vr_scores=1.0),
    row("broken", difference=-40.02, trained=0.0, left=0.1, vr_issued=0.5),
    row("secret", difference=-0.2),
]


def cells(table: str, name: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {name} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_for_each_federation() -> None:
    found = cells(ZOO_OF_FIVE.table(ROWS), "easy")
    assert found[:6] == ["easy", "digits", "mlp", "sgd", "fc1", "2"]
    assert found[6:] == ["90.00", "+0.12", "1.00", "1.00", "1.00", "0.97", "24", "4.0", "0.0100"]


def test_open_and_held_back_are_counted_apart() -> None:
    first, second = ZOO_OF_FIVE.table(ROWS).split("## Held back")
    assert "in the mean: -10.35 (asked for: at least -0.3; not met)" in first
    assert "the worst: -40.02 (broken)" in first
    assert "VR 1.00 as issued: 3 of 4" in first
    assert "VR at least 0.95 as trained: 2 of 4" in first
    assert "MA difference at least -1.0: 2 of 4" in first
    assert "all three: 1 of 4" in first
    assert "all three, where the suspect gives scores: 2 of 4" in first
    assert "in the mean: -0.20 (asked for: at least -0.3; met)" in second
    assert "all three: 1 of 1" in second
    assert "Held back" not in ZOO_OF_FIVE.table(ROWS[:4])


def test_seeds_are_averaged_and_the_least_vr_counts() -> None:
    rows = [row("easy"), row("easy", seed=1, difference=-0.4, trained=0.9, layer="fc2")]
    table = ZOO_OF_FIVE.table(rows)
    found = cells(table, "easy")
    assert found[4] == "fc1 / fc2"
    assert found[6:10] == ["90.00", "-0.20 ± 0.28", "1.00", "0.95 ± 0.07"]
    assert "VR at least 0.95 as trained: 0 of 1" in table
    assert "over 2 seeds" in table


def test_the_picture_names_what_misses_a_target(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert ZOO_OF_FIVE.picture(ROWS, tmp_path / "zoo.svg")
    assert ZOO_OF_FIVE.picture(ROWS[:1], tmp_path / "zoo.png")
    assert (tmp_path / "zoo.png").read_bytes()[1:4] == b"PNG"
    svg = (tmp_path / "zoo.svg").read_text()
    words = [word.strip() for word in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
    assert {"dear", "faint", "broken (-40.0)"} <= set(words)
    assert not {"easy", "secret"} & set(words)
    assert "held back while the defaults were chosen" in words
    assert any("2 of 5 meet all targets, 3 with scores" in word for word in words)


def test_names_in_the_picture_do_not_cover_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from tramark.lab.studies import zoo_picture

    kept: list[Any] = []
    measured, written = zoo_picture._text_box, zoo_picture._write_names

    def write(axes: Any, renderer: Any, names: Any, dots: Any) -> None:
        written(axes, renderer, names, dots)
        kept.extend(measured(text, renderer) for text in axes.texts if text.get_text() in names)

    monkeypatch.setattr(zoo_picture, "_write_names", write)
    rows = [row(name, difference=-1.5 - place / 50, left=0.8) for place, name in enumerate(NAMES)]
    ZOO_OF_FIVE.picture(rows, tmp_path / "zoo.png")
    assert len(kept) == 5
    assert not any(one.overlaps(other) for place, one in enumerate(kept) for other in kept[:place])


def test_the_zoo_holds_a_third_back() -> None:
    study = Zoo()
    assert len(study.cases()) == len({case.name for case in study.cases()}) == len(ZOO)
    assert {case.name for case in study.cases()} >= HELD_BACK
    assert len(HELD_BACK) * 3 == len(ZOO)
