"""The study `false-accusations`: who is accused of models that bear no mark."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tramark.keys.keyring import Keyring
from tramark.keys.pictures import LabelledImages, Patterns, WafflePatterns
from tramark.keys.sources import Source
from tramark.lab import data
from tramark.lab.data import Dataset
from tramark.lab.studies import paper, plots
from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import average, by, where, wilson
from tramark.lab.studies.parts import stage_of
from tramark.lab.studies.played import Scaled
from tramark.lab.studies.scales import case, federation, settings_of
from tramark.lab.studies.study import Bench, Case, Glance, Row
from tramark.tracing.trace import Rule, trace

RULES: dict[str, tuple[Rule, float]] = {
    "arg-max (the paper's)": ("paper", 1e-6),
    "ours, bound 10⁻²": ("default", 1e-2),
    "ours, bound 10⁻⁶": ("default", 1e-6),
}
CLIENTS = 10


@dataclass(frozen=True)
class FalseAccusations(Scaled):
    name: str = "false-accusations"

    def cases(self) -> list[Case]:
        keyrings = {"smoke": 2, "laptop": 30, "paper": 100}[self.scale]
        settings = federation("fashion-mnist", self.scale, "fedavg")
        sets = ("mnist",) if self.scale != "smoke" else ()
        made = []
        for number, rule in enumerate(RULES):
            # Triggers from a data set have no secret: another keyring would ask the same.
            count = 1 if RULES[rule][0] == "paper" else keyrings
            minutes = 0.1 if self.scale == "smoke" else 2.0
            one = case(
                f"rule-{number}", settings, minutes=minutes, rule=rule, keyrings=count, triggers=sets or ("waffle",)
            )
            made.append(Case(one.name, one.settings, (*one.sets, *sets), one.parts, one.minutes))
        return made

    def run(self, case: Case, seed: int, bench: Bench) -> Row:
        rule, bound = RULES[case.settings["rule"]]
        stage = stage_of(settings_of(case, seed), bench, "trained")
        task = stage.simulation.dataset
        accused: dict[str, int] = {}
        tried = named = 0
        for number in range(case.settings["keyrings"]):
            bench.say(f"keyring {number + 1} of {case.settings['keyrings']}")
            keyring = Keyring.generate(
                clients=[f"client-{i}" for i in range(CLIENTS)],
                classes=task.classes,
                source=_source(task, rule, case.settings["triggers"][0], bench),
                assignment="label" if rule == "paper" else "code",
                secret=f"study of false accusations {seed:06d} {number:06d}".encode(),
            )
            for client in stage.leaked:
                verdict = trace(stage.model(client), keyring, rule=rule, false_accusation=bound, batch=64)
                tried += 1
                named += bool(verdict.clients)
                for innocent in verdict.clients:
                    accused[innocent] = accused.get(innocent, 0) + 1
        return {"traces": tried, "accusations": named, "accused": accused}

    def table(self, rows: Sequence[Row]) -> str:
        lines = []
        for (rule,), own in by(rows, "rule").items():
            tried, named = (sum(row[name] for row in own) for name in ("traces", "accusations"))
            low, high = wilson(named, tried)
            whom: dict[str, int] = {}
            for row in own:
                for client, count in row["accused"].items():
                    whom[client] = whom.get(client, 0) + count
            most = max(whom, key=lambda client: whom[client], default="")
            often = f"{most} ({whom[most]} times)" if most else "nobody"
            lines.append([rule, str(tried), str(named), f"{100 * low:.1f} – {100 * high:.1f}", often])
        headings = ["rule", "traces", "accusations", "95 % interval, %", "accused most"]
        return (
            f"{markdown_table(headings, lines)}\n\nSuspects are the clients' models of a FedAvg federation, which bear "
            f"no mark. Each trace of ours is with a keyring of its own and {CLIENTS} clients; the arg-max rule asks "
            f"pictures of other data. The paper's text: false positives {paper.FALSE_POSITIVES_SAID}."
        )

    def picture(self, rows: Sequence[Row], path: Path) -> bool:
        rules = [rule for (rule,) in by(rows, "rule")]
        label = "unmarked models for which somebody is accused, %"
        values = [
            average([row["accusations"] / row["traces"] for row in where(rows, rule=rule)], 100) for rule in rules
        ]
        return plots.dots(path, rules, {label: {"here": values}})

    def glance(self, rows: Sequence[Row]) -> list[Glance]:
        return [
            Glance(
                f"accusations for unmarked models, {rule}",
                paper.FALSE_POSITIVES_SAID if RULES[rule][0] == "paper" else "–",
                f"{sum(row['accusations'] for row in own)} of {sum(row['traces'] for row in own)}",
            )
            for (rule,), own in by(rows, "rule").items()
        ]


def _source(task: Dataset, rule: Rule, triggers: str, bench: Bench) -> Source:
    channels, height, width = task.input_shape
    shape = channels, height, width
    if rule == "default":
        return Patterns(shape, mean=task.mean, std=task.std)
    if triggers == "waffle":
        return WafflePatterns(shape, mean=task.mean, std=task.std)
    other = data.load(triggers, data_dir=bench.data_dir)
    return LabelledImages(other.train_inputs, other.train_labels, shape, mean=task.mean, std=task.std, name=other.name)
