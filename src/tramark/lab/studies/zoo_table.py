"""The zoo as a table, open and held-back federations apart, each with a summary."""

from collections.abc import Callable, Sequence
from statistics import mean, stdev

from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.zoo_results import MEAN, VR_ISSUED, VR_TRAINED, WORST, Result

COLUMNS: dict[str, Callable[[Result], str]] = {
    "federation": lambda one: one.name,
    "task": lambda one: str(one.settings["task"]),
    "net": lambda one: str(one.settings["net"]),
    "optimiser": lambda one: str(one.settings["optimiser"]),
    "layer": lambda one: _each(one, "layer"),
    "clients": lambda one: str(one.settings["clients"]),
    "MA FedAvg": lambda one: _number(one.values("ma_fedavg"), "{:.2f}"),
    "MA issued - FedAvg": lambda one: _number(one.values("difference"), "{:+.2f}"),
    "VR issued": lambda one: _number(one.values("vr_issued"), "{:.2f}"),
    "VR trained": lambda one: _number(one.values("vr_trained"), "{:.2f}"),
    "with scores": lambda one: _number(one.values("vr_scores"), "{:.2f}"),
    "answers left": lambda one: _number(one.values("left"), "{:.2f}"),
    "questions": lambda one: _each(one, "questions"),
    "margin": lambda one: _number(one.values("margin"), "{:.1f}"),
    "cost": lambda one: _number(one.values("cost"), "{:.4f}"),
}

WORDS = 5
"""Columns at the left that are words."""


def zoo_table(results: Sequence[Result]) -> str:
    """The table as Markdown."""
    groups = {
        "Open": [one for one in results if not one.held_back],
        "Held back": [one for one in results if one.held_back],
    }
    parts = []
    for title, group in groups.items():
        if group:
            lines = [[cell(one) for cell in COLUMNS.values()] for one in group]
            parts += [f"## {title}", markdown_table(list(COLUMNS), lines, left=WORDS), _summary(group)]
    seeds = max(len(one.rows) for one in results)
    spread = f" Mean ± standard deviation over {seeds} seeds; VR counts at its least." if seeds > 1 else ""
    parts.append(
        "MA in %, its difference in points. VR is the least from the third marked round on, for models as issued and "
        f"as their clients have trained them, by labels alone and with scores; answers left are the mean over these "
        f"rounds.{spread}"
    )
    return "\n\n".join(parts)


def _summary(group: Sequence[Result]) -> str:
    difference = mean(one.difference for one in group)
    worst = min(group, key=lambda one: one.difference)
    met = "met" if difference >= MEAN else "not met"
    counts = {
        f"VR {VR_ISSUED:.2f} as issued": sum(one.traced_as_issued for one in group),
        f"VR at least {VR_TRAINED:.2f} as trained": sum(one.traced_as_trained for one in group),
        f"MA difference at least {WORST:.1f}": sum(one.cheap for one in group),
        "all three": sum(one.meets_all for one in group),
        "all three, where the suspect gives scores": sum(one.meets_with_scores for one in group),
    }
    return "\n".join(
        [
            f"- MA difference in the mean: {difference:+.2f} (asked for: at least {MEAN}; {met})",
            f"- the worst: {worst.difference:+.2f} ({worst.name})",
            *(f"- {what}: {count} of {len(group)}" for what, count in counts.items()),
        ]
    )


def _number(values: Sequence[float], form: str) -> str:
    """The mean, with the standard deviation if the values differ."""
    text = form.format(mean(values))
    same = len({form.format(value) for value in values}) == 1
    return text if same else f"{text} ± {form.replace('+', '').format(stdev(values))}"


def _each(one: Result, column: str) -> str:
    """What the rows say, each value once."""
    return " / ".join(dict.fromkeys(str(row[column]) for row in one.rows))
