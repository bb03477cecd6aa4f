"""Markdown tables that can also be read as plain text."""

from collections.abc import Sequence


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table with columns of even width; all but the first `left` are aligned to the right.

    >>> print(markdown_table(["net", "MA"], [["cnn", "86.1"], ["vit", "+0.25"]]))
    | net |    MA |
    |:----|------:|
    | cnn |  86.1 |
    | vit | +0.25 |
    """
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (headings, *lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def text(line: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = "|".join(":" + "-" * (w + 1) if place < left else "-" * (w + 1) + ":" for place, w in enumerate(widths))
    return "\n".join([text(cells[0]), f"|{rule}|", *map(text, cells[1:])])
