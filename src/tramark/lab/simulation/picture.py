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
        "ma": ("main task accuracy (MA)", "#1f5f99", "-", 1.8),
        # At best the next three lie on one line, so each is drawn narrower than the one below it.
        "vr": ("verification rate (VR)", "#9ad4b3", "-", 7.0),
        "confidence": ("confidence", "#e08a1e", "-", 3.0),
        "confidence_trained": ("confidence after local training", "#7a1f10", "--", 1.4),
        "leakage": ("leakage", "#8a8a8a", ":", 1.8),
    }
    for key, (label, colour, style, width) in curves.items():
        points = [(line["round"], 100 * line[key]) for line in metrics if line.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=width)
    if warmup:
        axes.axvspan(0, warmup, color="#000000", alpha=0.05, linewidth=0)
        axes.text(warmup / 2, 102, "warm-up", ha="center", va="bottom", fontsize=9, color="#555555")
    axes.set(xlabel="round", ylabel="%", ylim=(0, 110), xlim=(0, max(len(metrics), 1)), title=title)
    axes.grid(alpha=0.25)
    axes.legend(loc=(0.02, 0.16), fontsize=9, frameon=False)
    figure.savefig(path, dpi=130)
    return True
