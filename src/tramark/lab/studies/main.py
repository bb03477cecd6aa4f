"""The study `main`: Table 1, with VR also after the clients' own training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, column, given, number, paired, percent, where
from tramark.lab.studies.played import Played
from tramark.lab.studies.scales import VARIANTS, case, datasets, federation, splits, title
from tramark.lab.studies.study import Case, Glance, Row

TRAMARK = ("paper", "released", "ours")


@dataclass(frozen=True)
class Main(Played):
    name: str = "main"

    def cases(self) -> list[Case]:
        return [
            case(
                f"{data}-{split}-{variant}",
                federation(data, self.scale, variant, split=split),
                data=data,
                split=split,
                variant=variant,
            )
            for data in datasets(self.scale)
            for split in splits(self.scale)
            for variant in VARIANTS
        ]

    def table(self, rows: Sequence[Row]) -> str:
        headings = ["data", "split", "method", "MA", "best round", "minus FedAvg", "MA, paper", "VR", "VR, trained"]
        lines = []
        for (data, split, variant), own in by(rows, "data", "split", "variant").items():
            theirs = paper.MAIN[data, split][_of(variant)]
            fedavg = where(rows, data=data, split=split, variant="fedavg")
            differs = [100 * value for value in paired(own, fedavg)] if variant != "fedavg" else []
            lines.append(
                [
                    *map(title, (data, split, variant)),
                    percent(column(own, "ma")),
                    percent(column(own, "ma_best")),
                    number(differs, "+.2f"),
                    given(theirs.ma),
                    percent(column(own, "vr"), 1),
                    percent(column(own, "vr_trained"), 1),
                    given(theirs.vr),
                ]
            )
        return "\n\n".join(
            [
                markdown_table([*headings, "VR, paper"], lines, left=3),
                "MA is that of the last round on all test samples, in the mean over clients; the paper's is that of "
                "the best round, which is given beside it on the samples of a round's evaluation. VR is that of models "
                "as issued, which is what the paper verifies; *trained* is that of models as their clients last "
                "trained them. Label answers (text, released) are judged by the paper's arg-max, which always names "
                "somebody; ours at a false-accusation bound of 10⁻⁶.",
                paper.SLIPS["tab:main_result"],
            ]
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        places = list(by(rows, "data", "split"))
        groups = [f"{title(data)}\n{title(split)}" for data, split in places]

        def series(name: str, variants: Sequence[str]) -> dict[str, list[float | None]]:
            return {
                variant: [
                    average(column(where(rows, data=data, split=split, variant=variant), name), 100)
                    for data, split in places
                ]
                for variant in variants
                if where(rows, variant=variant)
            }

        traced = ("fedtracker", *TRAMARK)
        theirs = {"released": [paper.MAIN[data, split]["tramark"].vr for data, split in places]}
        panels = {
            "MA, %": series("ma", tuple(VARIANTS)),
            "VR as issued, %": series("vr", traced),
            "VR as trained, %": series("vr_trained", traced),
        }
        return plots.dots(path, groups, panels, paper={"VR as issued, %": theirs})

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        found = []
        for variant in ("released", "ours"):
            own = where(rows, variant=variant)
            differs = [
                100 * value
                for (data, split), some in by(own, "data", "split").items()
                for value in paired(some, where(rows, data=data, split=split, variant="fedavg"))
            ]
            drop = format(mean(differs), "+.2f") if differs else "–"
            found += [
                Glance(f"MA minus FedAvg, {title(variant)}", f"{paper.MAIN_DROP:+.2f}", drop),
                Glance(
                    f"VR as issued, {title(variant)}",
                    given(paper.MAIN_MEAN["tramark"].vr),
                    given(average(column(own, "vr"), 100)),
                ),
                Glance(f"VR as trained, {title(variant)}", "–", given(average(column(own, "vr_trained"), 100))),
            ]
        return found


def _of(variant: str) -> str:
    """What the paper calls a variant."""
    return "tramark" if variant in TRAMARK else variant
