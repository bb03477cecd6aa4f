"""The arena at a glance: methods against attacks, as a heat map and as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw_matrix(rows: Sequence[dict[str, Any]], path: Path) -> bool:
    """Draw VR and lost accuracy for every method and attack; False if matplotlib is missing."""
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    methods = list(dict.fromkeys(row["method"] for row in rows))
    attacks = list(dict.fromkeys(row["title"] for row in rows))
    found = {(row["method"], row["title"]): row for row in rows}
    size = (4 + 1.3 * len(methods), 1.5 + 0.25 * len(attacks))
    figure, sides = plt.subplots(1, 2, figsize=size, sharey=True, layout="constrained")
    for axes, title, value, scale in (
        (sides[0], "VR", lambda row: row.get("vr"), {"cmap": "RdYlGn", "vmin": 0, "vmax": 1}),
        (sides[1], "points of MA lost", _lost, {"cmap": "Reds", "vmin": 0, "vmax": 15}),
    ):
        numbers = [[_number(value, found.get((method, attack))) for method in methods] for attack in attacks]
        cells = axes.imshow(numbers, aspect="auto", **scale)
        axes.set_facecolor("0.9")
        for y, line in enumerate(numbers):
            for x, number in enumerate(line):
                row = found.get((methods[x], attacks[y]), {})
                text = "–" if number != number else f"{number:.2f}" if title == "VR" else f"{number:.1f}"
                dark = number == number and sum(cells.to_rgba(number)[:3]) < 1.2
                style = {"fontsize": 7, "color": "white" if dark else "black"}
                axes.text(x, y, text + (" †" if row.get("dead") else ""), ha="center", va="center", **style)
        axes.set_title(title)
        axes.set_xticks(range(len(methods)), methods, rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(len(attacks)), attacks, fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """MA and VR of every method under every attack; † where it destroyed the model, – where it cannot be made."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    attacks = list(dict.fromkeys(row["title"] for row in rows))
    found = {(row["method"], row["title"]): row for row in rows}
    lines = [f"| attack | {' | '.join(methods)} |", "|---|" + "---|" * len(methods)]
    for attack in attacks:
        cells = (_cell(found.get((method, attack))) for method in methods)
        lines.append(f"| `{attack}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "ma" not in row:
        return "–"
    verdict = "" if row.get("vr") is None else f" / {row['vr']:.2f}"
    wrong = row.get("verdicts", {}).get("wrong", 0)
    return f"{100 * row['ma']:.1f}{'†' if row['dead'] else ''}{verdict}" + (f" ({wrong} wrong)" if wrong else "")


def _lost(row: dict[str, Any]) -> float | None:
    return 100 * (row["ma_before"] - row["ma"]) if "ma" in row else None


def _number(value: Any, row: dict[str, Any] | None) -> float:
    number = None if row is None else value(row)
    return float("nan") if number is None else float(number)
