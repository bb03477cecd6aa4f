"""Studies are run case by case, survive failures and kills, and never mix rows of different settings."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fake_study
import pytest
from fake_study import Notes, Squares

from tramark.errors import SettingError
from tramark.lab.studies.book import Book
from tramark.lab.studies.engine import _next, conduct
from tramark.lab.studies.needs import missing_sets
from tramark.lab.studies.pages import take_over
from tramark.lab.studies.study import Case, Part, Row, Run, all_runs, named


def run(out: Path, study: Squares, *, seeds: int = 1, workers: int = 1, watcher: Notes | None = None) -> list[Row]:
    runs = all_runs(study.cases(), seeds)
    return conduct(Book(study, out), runs, workers=workers, data_dir=None, watcher=watcher or Notes())


def results(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((out / "results.json").read_text())["rows"]
    return rows


def times(out: Path) -> dict[str, int]:
    """How often each run was started."""
    return {path.name: len(path.read_text()) for path in sorted((out / "work").iterdir())}


def test_every_case_and_seed_gets_a_row_a_table_and_a_picture(tmp_path: Path) -> None:
    notes = Notes()
    study = Squares((("b", 3), ("a", 2)))
    run(tmp_path, study, seeds=2, workers=3, watcher=notes)
    assert [(row["case"], row["seed"], row["square"]) for row in results(tmp_path)] == [
        ("b", 0, 9),
        ("b", 1, 10),
        ("a", 0, 4),
        ("a", 1, 5),
    ]
    assert {row["threads"] for row in results(tmp_path)} == {os.environ.get("OMP_NUM_THREADS", "1")}
    assert ("b-1", "round 1 of 3") in notes.said
    assert sorted(notes.done) == ["a-0", "a-1", "b-0", "b-1"]
    assert "| b    |      9 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "picture.png").read_text() == (tmp_path / "picture.svg").read_text() == "9 10 4 5"


def test_rows_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    run(tmp_path, Squares((("a", 2), ("b", 3))))
    more = run(tmp_path, Squares((("a", 2), ("b", 3), ("c", 4))))
    assert [row["square"] for row in more] == [16]
    assert times(tmp_path) == {"a-0": 1, "b-0": 1, "c-0": 1}
    assert [row["case"] for row in results(tmp_path)] == ["a", "b", "c"]


def test_a_failure_is_written_down_and_the_others_go_on(tmp_path: Path) -> None:
    study = Squares((("bad", -1), ("dead", 13), ("good", 5)))
    bad, dead, good = run(tmp_path, study)
    assert bad["error"] == "SettingError: -1 is negative"
    assert "Traceback" in bad["traceback"]
    assert "exit code 7" in dead["error"]
    assert good["square"] == 25
    assert good["warnings"] == ["five is odd"]
    table = (tmp_path / "table.md").read_text()
    assert "- bad, seed 0: SettingError: -1 is negative" in table
    assert "- dead, seed 0: its process ended" in table
    assert "Traceback" not in (tmp_path / "results.json").read_text()
    assert (tmp_path / "picture.png").read_text() == "25"
    run(tmp_path, study)
    assert times(tmp_path) == {"bad-0": 2, "dead-0": 2, "good-0": 1}, "what failed is tried again"


def test_a_row_of_other_settings_is_refused_and_kept(tmp_path: Path) -> None:
    run(tmp_path, Squares((("a", 2), ("b", 3))))
    changed = Squares((("a", 2), ("b", 4), ("c", 5)))
    with pytest.raises(SettingError, match=r"b-0 \(number was 3, is 4\).*--again"):
        run(tmp_path, changed)
    assert times(tmp_path) == {"a-0": 1, "b-0": 1}, "nothing is run"
    book = Book(changed, tmp_path)
    assert [row["case"] for row in book.rows()] == ["a"]
    assert "other settings: b-0" in book.table()
    book.forget(all_runs(changed.cases(), 1))
    run(tmp_path, changed)
    assert [row["square"] for row in results(tmp_path)] == [4, 16, 25]


def test_what_is_no_row_is_said(tmp_path: Path) -> None:
    study = Squares((("a", 2),))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a-0.json").write_text("{")
    with pytest.raises(SettingError, match=r"a-0.json is not a row"):
        run(tmp_path, study)


def test_a_killed_study_goes_on_where_it_was(tmp_path: Path) -> None:
    support = Path(fake_study.__file__).parent
    paths = [str(support), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, fake_study.__file__, str(tmp_path)], env=environment)
    try:
        # The second run hangs: by then the first has its row, and the third has not begun.
        while not ((pid := tmp_path / "pid").exists() and pid.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    # Its process ends, too.
    while Path(f"/proc/{pid.read_text()}/exe").exists():
        time.sleep(0.05)
    assert [row["square"] for row in results(tmp_path)] == [4]
    assert "| a    |      4 |" in (tmp_path / "table.md").read_text()
    hung = Squares((("a", 2), ("b", 404), ("c", 4)))
    runs = all_runs([case for case in hung.cases() if case.name != "b"], 1)
    conduct(Book(hung, tmp_path), runs, workers=1, data_dir=None, watcher=Notes())
    assert times(tmp_path) == {"a-0": 1, "b-0": 1, "c-0": 1}
    assert [row["square"] for row in results(tmp_path)] == [4, 16]


def test_an_interrupt_stops_the_runs(tmp_path: Path) -> None:
    class Impatient(Notes):
        def says(self, run: object, words: str) -> None:
            if words.startswith("round"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Squares((("a", 404), ("b", 404))), workers=2, watcher=Impatient())
    assert not (tmp_path / "rows").exists()


def test_missing_data_is_found_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAMARK_CACHE", str(tmp_path / "cache"))
    cases = [Case("a", {}, ("digits", "nonsense")), Case("b", {}, ("digits",))]
    assert list(missing_sets(cases, None)) == ["nonsense"]
    assert (tmp_path / "cache" / "digits.npz").exists(), "what can be fetched is fetched"


def test_cases_are_chosen_by_name() -> None:
    cases = Squares((("a", 1), ("b", 2), ("c", 3))).cases()
    assert [case.name for case in named(cases, ["c", "a"])] == ["a", "c"]
    assert named(cases, []) == cases
    with pytest.raises(SettingError, match="no case named d; there are a, b, c"):
        named(cases, ["a", "d"])


def test_a_run_waits_for_the_federation_that_another_one_plays(tmp_path: Path) -> None:
    pair, other = Part({"rounds": 2}), Part({"rounds": 3})
    first, second, third = (
        Run(Case(name, {}, parts=(part,)), 0) for name, part in (("a", pair), ("b", pair), ("c", other))
    )
    assert _next([second, third], [first], tmp_path) is third
    assert _next([second], [first], tmp_path) is None
    assert _next([Run(second.case, 1)], [first], tmp_path) is not None, "another seed is another federation"
    pair.folder(tmp_path, 0).mkdir()
    (pair.folder(tmp_path, 0) / "summary.json").touch()
    assert _next([second, third], [first], tmp_path) is second, "it is finished"


def test_a_run_waits_for_the_first_rounds_that_another_one_plays(tmp_path: Path) -> None:
    plain = Part({"method": "fedavg"})
    marked = Part({"method": "tramark"}, begins_as=plain.settings)
    first, second = (Run(Case(name, {}, parts=(part,)), 0) for name, part in (("a", plain), ("b", marked)))
    assert _next([second], [first], tmp_path) is None
    assert _next([second], [], tmp_path) is second, "it can be played without"
    assert _next([first], [second], tmp_path) is first, "FedAvg waits for nobody"
    plain.folder(tmp_path, 0).mkdir()
    (plain.folder(tmp_path, 0) / "summary.json").touch()
    assert _next([second], [first], tmp_path) is second


def test_published_rows_are_taken_over_if_their_settings_are_the_same(tmp_path: Path) -> None:
    study, pages = Squares((("a", 2), ("b", 3))), tmp_path / "pages"
    pages.mkdir()
    rows = [
        {"case": "a", "seed": 0, "settings": {"number": 2, "list": [1, 2]}, "square": 40},
        {"case": "b", "seed": 0, "settings": {"number": 4, "list": [1, 2]}, "square": 90},
    ]
    (pages / "squares.json").write_text(json.dumps({"scale": "laptop", "rows": rows}))
    book, runs = Book(study, tmp_path / "out"), all_runs(study.cases(), 2)
    assert take_over(book, "smoke", pages, runs) == 0, "another scale"
    assert take_over(book, "laptop", pages, runs) == 1
    assert [run.name for run in book.pending(runs)] == ["b-0", "a-1", "b-1"]
    assert [row["square"] for row in book.good()] == [40]
    book.write(runs[0], {"square": 4})
    assert take_over(book, "laptop", pages, runs) == 0
    assert [row["square"] for row in book.good()] == [4], "a row of one's own stays"


def test_studies_share_a_folder_of_work(tmp_path: Path) -> None:
    study = Squares((("a", 2),))
    conduct(
        Book(study, tmp_path / "one", tmp_path / "work"),
        all_runs(study.cases(), 1),
        workers=1,
        data_dir=None,
        watcher=Notes(),
    )
    assert times(tmp_path) == {"a-0": 1}
    assert (tmp_path / "one" / "table.md").exists()
