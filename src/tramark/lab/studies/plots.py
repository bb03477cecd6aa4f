"""Pictures of studies in one style: readable at column width, and by colour-blind readers.

Each method has a colour (Okabe and Ito's), a marker and a line style of its own. The paper's numbers are hollow.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tramark.lab.studies.scales import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#333333"


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    marker: str
    line: Any


LOOKS = {
    "fedavg": Look("#000000", "s", "-"),
    "waffle": Look("#E69F00", "^", (0, (4, 2))),
    "fedtracker": Look("#CC79A7", "D", (0, (1, 1))),
    "paper": Look("#56B4E9", "v", (0, (6, 2, 1, 2))),
    "released": Look("#D55E00", "o", (0, (6, 2))),
    "ours": Look("#0072B2", "P", "-"),
}
OTHERS = (
    Look("#0072B2", "o", "-"),
    Look("#D55E00", "s", (0, (6, 2))),
    Look("#009E73", "^", (0, (1, 1))),
    Look("#CC79A7", "D", (0, (4, 2))),
    Look("#E69F00", "v", (0, (6, 2, 1, 2))),
    Look("#56B4E9", "P", (0, (3, 1, 1, 1))),
)

Points = Sequence[tuple[float, float]]
Panels = Mapping[str, Mapping[str, Points]]
"""Curves by the label of their panel's axis and by series."""


def lines(path: Path, panels: Panels, *, across: str, percent: bool = True, log: bool = False) -> bool:
    """Draw curves in panels; False if matplotlib is missing. A series looks the same in all panels."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // 2)

    def paint(figure: "Figure") -> None:
        looks = _looks([name for panel in panels.values() for name in panel])
        every = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, (label, curves) in zip(every, panels.items(), strict=False):
            for name, points in curves.items():
                _curve(axes, sorted(points), looks[name], marked=len(points) <= 12)
            _frame(axes, across, label, percent and not label.startswith("KL"))
            if log:
                axes.set_xscale("log")
        _legend(figure, looks)

    return draw(path, paint, width=6.4 if columns == 2 else 4.8, height=0.8 + 2.4 * rows)


def dots(
    path: Path,
    groups: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    paper: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None,
    log: bool = False,
) -> bool:
    """Draw a line of dots for each group, a panel beside another; False if matplotlib is missing.

    `panels` has for each panel and series a number a group. `paper` has the paper's in the same way.
    """
    given = paper or {}

    def paint(figure: "Figure") -> None:
        looks = _looks([name for panel in (*panels.values(), *given.values()) for name in panel])
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        places = range(len(groups))
        for axes, (label, series) in zip(every, panels.items(), strict=True):
            theirs = given.get(label, {})
            names = [name for name in looks if name in series or name in theirs]
            for number, name in enumerate(names):
                look, shift = looks[name], 0.7 * ((number + 0.5) / len(names) - 0.5)
                for values, filled in ((theirs.get(name, ()), False), (series.get(name, ()), True)):
                    shown = [
                        (value, place + shift)
                        for place, value in zip(places, values, strict=False)
                        if value is not None
                    ]
                    if shown:
                        face = look.colour if filled else "none"
                        style = {"markersize": 6, "markerfacecolor": face, "markeredgecolor": look.colour}
                        axes.plot(*zip(*shown, strict=True), look.marker, **style, zorder=3)
            for place in places[1:]:
                axes.axhline(place - 0.5, color=INK, linewidth=0.4, alpha=0.3)
            axes.set(xlabel=label, yticks=list(places), yticklabels=list(groups), ylim=(len(groups) - 0.5, -0.5))
            if log:
                axes.set_xscale("log")
            if label.startswith("VR"):
                axes.set_xlim(-6, 106)
            axes.grid(axis="x", alpha=0.2)
            axes.spines[["top", "right"]].set_visible(False)
        _legend(figure, looks, hollow=any(given.values()), line=False)

    return draw(path, paint, width=6.4, height=1.5 + max(0.55 * len(groups), 1.2))


def draw(path: Path, paint: Callable[["Figure"], None], *, width: float, height: float) -> bool:
    """Draw a figure in the style of all studies; False if matplotlib is missing."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    # Ids in an SVG are random otherwise, and text would be drawn as outlines.
    with rc_context({"svg.hashsalt": "study", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        paint(figure)
        figure.savefig(path, dpi=170, metadata={"Date": None} if path.suffix == ".svg" else {})
    return True


def _looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name: its own, or one of those that no other has."""
    different = list(dict.fromkeys(names))
    free = [look for look in OTHERS if look.colour not in {LOOKS[n].colour for n in different if n in LOOKS}] or OTHERS
    looks, taken = {}, 0
    for name in different:
        if name in LOOKS:
            looks[name] = LOOKS[name]
        else:
            looks[name] = free[taken % len(free)]
            taken += 1
    return looks


def _curve(axes: "Axes", points: Points, look: Look, *, marked: bool) -> None:
    if points:
        across, up = zip(*points, strict=True)
        marker = look.marker if marked else ""
        axes.plot(across, up, color=look.colour, linestyle=look.line, marker=marker, markersize=5, linewidth=1.8)


def _frame(axes: "Axes", across: str, label: str, percent: bool) -> None:
    axes.set(xlabel=across, ylabel=label)
    if percent and label.startswith("VR"):
        axes.set_ylim(-4, 104)
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(figure: "Figure", looks: Mapping[str, Look], *, hollow: bool = False, line: bool = True) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line if line else "", label=title(name))
        for name, look in looks.items()
    ]
    if hollow:
        ring = Line2D([], [], marker="o", linestyle="", markerfacecolor="none", markeredgecolor=INK)
        ring.set_label("hollow: the paper's")
        handles.append(ring)
    # Below the axes, where nothing is drawn; long labels leave room for two columns.
    if len(handles) > 1:
        columns = min(len(handles), 3 if max(len(str(one.get_label())) for one in handles) <= 20 else 2)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
