"""A picture of a run: how accuracy and traceability went, round by round."""

from pathlib import Path
from typing import Any


def draw_curves(metrics: list[dict[str, Any]], path: Path, *, warmup: int | None = None, title: str = "") -> bool:
    """Draw a run's curves as a PNG; gives False if matplotlib is not there to draw with."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    curves = {
        "ma": ("main task accuracy (MA)", "#1f5f99", "-"),
        "vr": ("verification rate (VR)", "#2a9d5c", "-"),
        "confidence": ("confidence", "#e08a1e", "-"),
        "confidence_trained": ("confidence after local training", "#c4442f", "--"),
        "leakage": ("leakage", "#8a8a8a", ":"),
    }
    for key, (label, colour, style) in curves.items():
        points = [(line["round"], 100 * line[key]) for line in metrics if line.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1.8)
    if warmup:
        axes.axvspan(0, warmup, color="#000000", alpha=0.05, linewidth=0)
        axes.text(warmup / 2, 102, "warm-up", ha="center", va="bottom", fontsize=9, color="#555555")
    axes.set(xlabel="round", ylabel="%", ylim=(0, 110), xlim=(0, max(len(metrics), 1)), title=title)
    axes.grid(alpha=0.25)
    axes.legend(loc="center left", fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
    return True
