"""Every study at scale `smoke`: its cases run, and a page with table, picture and comparison comes of it."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tramark.lab.studies.book import Book
from tramark.lab.studies.catalogue import STUDIES
from tramark.lab.studies.contents import CONTENTS
from tramark.lab.studies.pages import index_text, publish
from tramark.lab.studies.study import SCALES, Bench, Run, all_runs, minutes_of
from tramark.lab.studies.zoo import HELD_BACK

QUICK = ("main", "interval", "divergence", "fairness", "methods", "large", "queries", "two-classes")
"""Studies that use what `main` has made, or take an instant; the others are marked slow."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all studies share, as with one --out."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    # Federations this small cannot be marked well, and the server says so.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_all(name: str, work: Path, out: Path) -> Book:
    """Run a study's cases in this process."""
    study = STUDIES[name]("smoke")
    book = Book(study, out, work)
    for case in study.cases():
        row = {"seconds": 0.1} | study.run(case, 0, Bench(work))
        json.dumps(row)
        book.keep(Run(case, 0), row)
    assert book.write_up(), "matplotlib is there"
    return book


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in STUDIES]
)
def test_a_study_makes_its_page(name: str, work: Path, tmp_path: Path) -> None:
    book = run_all(name, work, tmp_path / "out")
    page = publish(book, "smoke", tmp_path / "pages").read_text()
    assert page.startswith(f"# {CONTENTS[name].title}")
    assert f"tramark study {name} --scale smoke" in page
    assert page.count("\n|") > len({row["case"] for row in book.good()}) / 2, "there is a table"
    assert "Failed" not in page
    assert f"![{CONTENTS[name].title}]({name}.png)" in page
    assert (tmp_path / "pages" / f"{name}.png").stat().st_size > 5_000
    published = json.loads((tmp_path / "pages" / f"{name}.json").read_text())
    assert len(published["rows"]) == len(book.study.cases())
    assert published["glance"]
    index = (tmp_path / "pages" / "studies.md").read_text()
    assert all(what in index and ours in index for what, _, ours in published["glance"])


def test_studies_and_contents_are_the_same() -> None:
    assert list(STUDIES) == list(CONTENTS)


@pytest.mark.parametrize("scale", SCALES)
def test_cases_have_names_of_their_own(scale: str) -> None:
    for name, made in STUDIES.items():
        names = [case.name for case in made(scale).cases()]  # type: ignore[arg-type]
        assert names, name
        assert len(set(names)) == len(names), name


def test_all_studies_fit_into_twelve_hours_on_a_laptop() -> None:
    runs = [run for made in STUDIES.values() for run in all_runs(made("laptop").cases(), 1)]
    assert minutes_of([run for run in runs if run.case.name not in HELD_BACK]) < 12 * 60


def test_studies_share_the_federations_of_main(tmp_path: Path) -> None:
    def folders(name: str) -> set[Path]:
        return {folder for run in all_runs(STUDIES[name]("laptop").cases(), 1) for folder in run.unfinished(tmp_path)}

    for name in ("interval", "divergence", "attacks", "finetune-rate", "quantisation", "rnp", "fairness", "queries"):
        assert folders(name) <= folders("main"), name
    for name in ("warmup", "ratio", "trigger-size", "trigger-source", "collusion", "false-accusations"):
        assert folders(name) & folders("main"), name


def test_the_index_keeps_the_order_of_the_contents(tmp_path: Path) -> None:
    for name in ("fairness", "main"):
        published = {"scale": "laptop", "seeds": [0, 1], "glance": [["what", "1.0", "2.0"]]}
        (tmp_path / f"{name}.json").write_text(json.dumps(published))
    text = index_text(tmp_path)
    assert text.index("main.md") < text.index("fairness.md")
    assert "laptop, 2 seeds" in text
