"""Tables of MA and VR beside the paper's, as most studies have them."""

from collections.abc import Callable, Mapping, Sequence

from tramark.lab.studies.markdown import markdown_table
from tramark.lab.studies.numbers import by, column, given, percent
from tramark.lab.studies.paper import Score
from tramark.lab.studies.scales import title
from tramark.lab.studies.study import Row

NOTE = (
    "MA is that of the last round, in the mean over clients. VR is that of models as issued, and *trained* that of "
    "models as their clients last trained them. A number after ± is the standard deviation over seeds."
)


def scores(
    rows: Sequence[Row],
    labels: Mapping[str, str],
    theirs: Callable[[tuple[str, ...]], Score | None] = lambda _: None,
) -> str:
    """MA and VR of federations, a line for each combination of labels.

    Parameters
    ----------
    labels : the headings of the first columns, and which label of a row's case each shows.
    theirs : the paper's numbers for the values of these labels.
    """
    lines = []
    for key, own in by(rows, *labels.values()).items():
        score = theirs(key) or Score()
        lines.append(
            [
                *map(title, key),
                percent(column(own, "ma")),
                given(score.ma),
                percent(column(own, "vr"), 1),
                percent(column(own, "vr_trained"), 1),
                given(score.vr),
            ]
        )
    headings = [*labels, "MA", "MA, paper", "VR", "VR, trained", "VR, paper"]
    return f"{markdown_table(headings, lines, left=len(labels))}\n\n{NOTE}"
