"""The study `queries`: how many questions a trace asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tramark.lab.methods import Traced
from tramark.lab.studies import plots
from tramark.lab.studies.attacked import MODELS
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by
from tramark.lab.studies.parts import stage_of
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.scales import case, datasets, federation, settings_of, title
from tramark.lab.studies.study import Bench, Case, Glance, Row
from tramark.tracing.trace import trace

BOUNDS = (1e-3, 1e-6, 1e-9)


@dataclass(frozen=True)
class Queries(Scaled):
    name: str = "queries"

    def cases(self) -> list[Case]:
        return [
            case(
                f"{data}-{which}",
                federation(data, self.scale, "ours"),
                minutes=0.1 if self.scale == "smoke" else 0.5,
                data=data,
                which=which,
            )
            for data in datasets(self.scale)
            for which in MODELS
        ]

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        stage = stage_of(settings_of(case, seed), bench, case.settings["which"])
        method = stage.simulation.method
        assert isinstance(method, Traced)
        found = []
        for bound in BOUNDS:
            verdicts = {c: trace(stage.model(c), method.keyring, false_accusation=bound) for c in stage.leaked}
            found.append(
                {
                    "bound": bound,
                    "queries": [verdict.queries for verdict in verdicts.values()],
                    "right": [verdict.clients == (client,) for client, verdict in verdicts.items()],
                }
            )
        return {"questions": method.keyring.questions, "bounds": found}

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (data, which), own in by(rows, "data", "which").items():
            for place, bound in enumerate(BOUNDS):
                asked = [count for row in own for count in row["bounds"][place]["queries"]]
                right = [value for row in own for value in row["bounds"][place]["right"]]
                cells = [f"{median(asked):g}", str(max(asked)), f"{sum(right)} of {len(right)}"]
                lines.append([title(data), MODELS[which], f"{bound:g}", str(own[0]["questions"]), *cells])
        headings = ["data", "models", "bound", "questions there are", "queries, median", "most", "named rightly"]
        return markdown_table(headings, lines, left=2)

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        panels = {
            "queries, median": {
                f"{title(data)}, {MODELS[which]}": [
                    (bound, median(count for row in own for count in row["bounds"][place]["queries"]))
                    for place, bound in enumerate(BOUNDS)
                ]
                for (data, which), own in by(rows, "data", "which").items()
                if which == "trained"
            }
        }
        return plots.lines(path, panels, across="false-accusation bound", percent=False, log=True)

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        asked = [
            count for row in rows if row["settings"]["which"] == "trained" for count in row["bounds"][1]["queries"]
        ]
        return [Glance("queries to name the client at 10⁻⁶, median", "–", f"{median(asked):g}")] if asked else []
