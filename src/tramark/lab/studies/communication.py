"""The study `communication`: what the server sends and receives in a round."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, where
from tramark.lab.studies.scales import title
from tramark.lab.studies.served import Served
from tramark.lab.studies.study import Glance, Row

MB = 1e6


@dataclass(frozen=True)
class Communication(Served):
    name: str = "communication"

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (variant,), own in by(rows, "variant").items():
            row = own[0]
            sent = "one, broadcast" if row["distinct"] == 1 else f"{row['distinct']}, unicast"
            sizes = (f"{row[name] / MB:.1f}" for name in ("model_bytes", "down_bytes", "up_bytes"))
            lines.append([title(variant), sent, *sizes])
        headings = ["method", "different models sent", "a model, MB", "sent, MB", "received, MB"]
        return (
            f"{markdown_table(headings, lines, left=2)}\n\n*Sent* is for {rows[0]['clients']} clients, if each gets a "
            f"message of its own. The paper's text: {paper.COMMUNICATION_SAID}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        names = list(dict.fromkeys(row["settings"]["variant"] for row in rows))
        label = "models' worth of data in a round"
        panels = {
            label: {
                words: [
                    average([row[name] / row["model_bytes"] for row in where(rows, variant=variant)])
                    for variant in names
                ]
                for name, words in (("down_bytes", "sent"), ("up_bytes", "received"))
            }
        }
        return plots.dots(path, [title(name) for name in names], panels)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        (row, *_) = where(rows, variant="ours") or [{"down_bytes": 0, "model_bytes": 1}]
        sent = row["down_bytes"] / row["model_bytes"]
        return [Glance("models sent in a round to n clients", "n at most", f"{sent:g} for n = {row.get('clients', 0)}")]
