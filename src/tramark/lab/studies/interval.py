"""The study `interval`: Fig. 1, how confidence and leakage go over rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by, number, where
from tramark.lab.studies.parts import outcome
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.scales import case, datasets, federation, settings_of, title
from tramark.lab.studies.study import Bench, Case, Glance, Row

DATA = ("cifar-10", "cifar-100", "fashion-mnist")


@dataclass(frozen=True)
class Curves(Scaled):
    """A study of what federations do round by round; those of `main` are used."""

    def cases(self) -> list[Case]:
        return [
            case(f"{data}-{variant}", federation(data, self.scale, variant), data=data, variant=variant)
            for data in datasets(self.scale, *DATA)
            for variant in ("released", "ours")
        ]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        return {"curve": outcome(settings_of(case, seed), bench)["curve"]}


@dataclass(frozen=True)
class Interval(Curves):
    name: str = "interval"

    def table(self, rows: Sequence[Row]) -> str:
        names = ("confidence", "leakage", "interval", "confidence_trained")
        lines = []
        for (data, variant), own in by(rows, "data", "variant").items():
            for when in ("first", "middle", "last"):
                points = [one for row in own if (one := at(row, when))]
                if points:
                    cells = [number([one.get(name) for one in points]) for name in names]
                    lines.append([title(data), title(variant), f"{when} ({points[0]['round']})", *cells])
        headings = ["data", "method", "marked round", "confidence", "leakage", "interval", "confidence, trained"]
        return (
            f"{markdown_table(headings, lines, left=3)}\n\nThe paper's figure has no numbers; its text says: "
            f"{paper.INTERVAL_SAID}. *Trained* is the confidence of models as their clients trained them in that round."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        panels = {
            f"{title(data)}, % of answers": {
                f"{title(variant)}: {name}": curve(where(rows, data=data, variant=variant), name, 100)
                for variant in ("released", "ours")
                for name in ("confidence", "leakage")
            }
            for data in list(dict.fromkeys(row["settings"]["data"] for row in rows))[:2]
        }
        return plots.lines(path, panels, across="round")

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(f"interval from first to last marked round, {title(variant)}", "widens", ends(own, "interval"))
            for (variant,), own in by(rows, "variant").items()
        ]


def marked(row: Row) -> list[Row]:
    """The rounds after which models are marked."""
    return [one for one in row["curve"] if one.get("confidence") is not None]


def at(row: Row, when: str) -> Row | None:
    """The first, middle or last marked round."""
    rounds = marked(row)
    return rounds[{"first": 0, "middle": len(rounds) // 2, "last": -1}[when]] if rounds else None


def ends(rows: Sequence[Row], name: str) -> str:
    """A number at the first and at the last marked round, in the mean over rows."""
    first, last = ([one.get(name) for row in rows if (one := at(row, when))] for when in ("first", "last"))
    return f"{number(first).split(' ')[0]} → {number(last).split(' ')[0]}"


def curve(rows: Sequence[Row], name: str, scale: float = 1.0) -> list[tuple[float, float]]:
    """A number over rounds, in the mean over seeds."""
    found: dict[int, list[float]] = {}
    for row in rows:
        for one in marked(row):
            if one.get(name) is not None:
                found.setdefault(one["round"], []).append(scale * one[name])
    return [(float(round_), sum(values) / len(values)) for round_, values in found.items()]
