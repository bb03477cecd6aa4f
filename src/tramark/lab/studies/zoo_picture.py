"""The zoo as a picture: a dot for each federation, at what its marks cost and how much of them outlives training."""

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tramark.lab.studies.zoo_results import WORST, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

GOOD, FAIR, BAD, INK, AREA = "#1f6f8b", "#edae49", "#d1495b", "#333333", "#e3f1ea"
FARTHEST = -4.0
"""Points of accuracy at which the picture ends; dots beyond are drawn at its edge, with their number."""


def draw_zoo(results: Sequence[Result], path: Path) -> bool:
    """Draw the federations; False if matplotlib is missing."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    # Ids in an SVG are random otherwise, and text would be drawn as outlines.
    with rc_context({"svg.hashsalt": "zoo", "svg.fonttype": "none", "font.size": 11}):
        figure = Figure(figsize=(9, 6), layout="constrained", facecolor="white")
        canvas, axes = FigureCanvasAgg(figure), figure.subplots()
        _frame(axes, results)
        places = {one.name: (max(one.difference, FARTHEST), 100 * one.left) for one in results}
        for one in results:
            colour = GOOD if one.meets_all else FAIR if one.meets_with_scores else BAD
            axes.plot(
                *places[one.name],
                "o" if one.difference >= FARTHEST else "<",
                markersize=9,
                markerfacecolor="white" if one.held_back else colour,
                markeredgecolor=colour if one.held_back else "white",
                markeredgewidth=1.8 if one.held_back else 0.8,
                zorder=3,
            )
        _legend(axes, results)
        outside = {_label(one): places[one.name] for one in results if not one.meets_all}
        figure.draw_without_rendering()
        renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
        _write_names(axes, renderer, outside, list(places.values()))
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
    return True


def _frame(axes: "Axes", results: Sequence[Result]) -> None:
    differences = [one.difference for one in results]
    least = min(100 * one.left for one in results)
    left = max(min(*differences, WORST) - 0.4, FARTHEST - 0.15)
    right = max(*differences, 0.6) + 0.4
    bottom = max(0.0, min(80.0, math.floor(least / 10) * 10 - 8))
    axes.set(xlim=(left, right), ylim=(bottom, 102 + (100 - bottom) / 25))
    axes.axvspan(WORST, right, color=AREA, linewidth=0, zorder=0)
    axes.axvline(0, color=INK, linewidth=0.8, alpha=0.5, zorder=1)
    middle = mean(differences)
    axes.axvline(middle, color=GOOD, linewidth=1.2, linestyle=(0, (5, 3)), zorder=1)
    axes.annotate(
        f"mean {middle:+.2f}",
        (middle, bottom),
        xytext=(5 if middle >= 0 else -5, 6),
        textcoords="offset points",
        ha="left" if middle >= 0 else "right",
        fontsize=10,
        color=GOOD,
    )
    axes.set_xlabel("accuracy of marked models minus FedAvg's, in points")
    axes.set_ylabel("answers left after the clients' training, %")
    axes.set_yticks([tick for tick in range(0, 101, 10) if tick >= bottom])
    axes.grid(alpha=0.2, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    met, fair = sum(one.meets_all for one in results), sum(one.meets_with_scores for one in results)
    title = f"What marks cost, and what training leaves: {met} of {len(results)} meet all targets, {fair} with scores"
    axes.set_title(title, loc="left")


def _legend(axes: "Axes", results: Sequence[Result]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def dot(colour: str, label: str, **more: Any) -> Line2D:
        return Line2D([], [], marker="o", linestyle="", markersize=8, color=colour, label=label, **more)

    handles: list[Any] = [
        dot(GOOD, "meets all targets"),
        dot(FAIR, "meets them where the suspect gives scores"),
        dot(BAD, "too dear, or too few models traced"),
    ]
    if any(one.held_back for one in results):
        handles.append(dot(INK, "held back while the defaults were chosen", markerfacecolor="white"))
    handles.append(Patch(color=AREA, label=f"at most {-WORST:.0f} point lost"))
    # Below the axes, where no dot can be.
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=10, frameon=False)


def _label(one: Result) -> str:
    beyond = f" ({one.difference:+.1f})" if one.difference < FARTHEST else ""
    return one.name + beyond


def _write_names(
    axes: "Axes", renderer: Any, names: dict[str, tuple[float, float]], dots: Sequence[tuple[float, float]]
) -> None:
    """Write names beside their dots so that they cover neither dots nor each other."""
    from matplotlib.transforms import Bbox

    room = axes.get_window_extent(renderer)
    centres = axes.transData.transform(list(dots))
    size = 8 * axes.figure.dpi / 100
    taken = [Bbox.from_bounds(x - size, y - size, 2 * size, 2 * size) for x, y in centres]
    for name, place in sorted(names.items(), key=lambda one: -one[1][1]):
        best: tuple[float, Any, Bbox] | None = None
        for radius, turn in product((12, 20, 30, 42, 56, 72), range(16)):
            angle = math.tau * turn / 16
            across, up = math.cos(angle), math.sin(angle)
            text = axes.annotate(
                name,
                place,
                xytext=(radius * across, radius * up),
                textcoords="offset points",
                ha="left" if across > 0.3 else "right" if across < -0.3 else "center",
                va="center",
                fontsize=9.5,
                color=INK,
                arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.5, "alpha": 0.6} if radius > 12 else None,
                zorder=4,
            )
            box = _text_box(text, renderer)
            clash = sum(_overlap(box, other) for other in taken) + (box.width * box.height - _overlap(box, room))
            if best is None or clash < best[0]:
                if best is not None:
                    best[1].remove()
                best = clash, text, box
            else:
                text.remove()
            if best[0] == 0:
                break
        assert best is not None
        taken.append(best[2])


def _text_box(text: Any, renderer: Any) -> "Bbox":
    """The box of an annotation's words, without the line to its dot."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


def _overlap(one: "Bbox", other: "Bbox") -> float:
    """The area that two boxes share."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(wide, 0.0) * max(high, 0.0))
