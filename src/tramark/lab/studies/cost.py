"""The study `cost`: Table 3, seconds of making marks in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, given, number, where
from tramark.lab.studies.scales import title
from tramark.lab.studies.served import Served
from tramark.lab.studies.study import Glance, Row

TRAMARK = ("paper", "released", "ours")
NOTE = (
    "Times depend on the machine: the paper's are from a GPU (RTX A6000), those here from one thread of a CPU unless "
    "the command names a device. So compare the methods with each other."
)


@dataclass(frozen=True)
class Cost(Served):
    name: str = "cost"

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (variant,), own in by(rows, "variant").items():
            seconds = marking(rows, variant)
            each = [value / row["clients"] for value, row in zip(seconds, own, strict=False)]
            theirs = _paper(variant)
            lines.append(
                [
                    title(variant),
                    number([row["seconds_collect"] for row in own]),
                    number(seconds),
                    given(paper.MARKING_SECONDS.get(theirs)),
                    number(each),
                    given(paper.MARKING_SECONDS_PER_CLIENT.get(theirs)),
                ]
            )
        headings = ["method", "collect, s", "marks, s", "marks, paper", "a client, s", "a client, paper"]
        return (
            f"{markdown_table(headings, lines)}\n\n*Collect* is all that the server does in a round, aggregation "
            f"included; *marks* is that minus what FedAvg's takes. {NOTE}"
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        variants = [row["settings"]["variant"] for row in rows if row["settings"]["variant"] != "fedavg"]
        names = list(dict.fromkeys(variants))
        ours = [max(average(marking(rows, variant)) or 0.0, 1e-3) for variant in names]
        theirs = [paper.MARKING_SECONDS.get(_paper(variant)) for variant in names]
        label = "seconds of making marks in a round"
        groups = [title(name) for name in names]
        return plots.dots(path, groups, {label: {"here": ours}}, paper={label: {"here": theirs}}, log=True)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        theirs = paper.MARKING_SECONDS["tramark"] / paper.MARKING_SECONDS["waffle"]
        waffle = average(marking(rows, "waffle"))
        found = []
        for variant in ("released", "ours"):
            own = average(marking(rows, variant))
            ratio = f"{own / waffle:.2f}" if own is not None and waffle else "–"
            found.append(Glance(f"time of making marks, {title(variant)}, over WAFFLE's", f"{theirs:.2f}", ratio))
        return found


def marking(rows: Sequence[Row], variant: str) -> list[float]:
    """Seconds of collecting a round minus FedAvg's, seed by seed."""
    plain = {row["seed"]: row["seconds_collect"] for row in where(rows, variant="fedavg")}
    return [
        max(0.0, row["seconds_collect"] - plain[row["seed"]])
        for row in where(rows, variant=variant)
        if row["seed"] in plain
    ]


def _paper(variant: str) -> str:
    return "tramark" if variant in TRAMARK else variant
