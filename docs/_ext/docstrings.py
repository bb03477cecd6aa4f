"""Docstrings as this project writes them, for Sphinx: `Parameters` lists names with what they mean, not with types."""

import re
from typing import Any

from sphinx.application import Sphinx

_PARAMETER = re.compile(r"(\S.*?) : (.*)")


def listed(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the section `Parameters` into a list, in place."""
    out: list[str] = []
    inside = False
    for number, line in enumerate(lines):
        if line == "Parameters" and lines[number + 1 : number + 2] == ["----------"]:
            inside = True
            out += ["**Parameters**", ""]
        elif inside and line == "----------":
            continue
        elif inside and (found := _PARAMETER.fullmatch(line)):
            out += [f"* ``{found[1]}``: {found[2]}"]
        elif inside and line.startswith("    "):
            out += ["  " + line.strip()]
        else:
            inside = inside and not line.strip()
            out += [line]
    lines[:] = out


def setup(sphinx: Sphinx) -> dict[str, bool]:
    sphinx.connect("autodoc-process-docstring", listed)
    return {"parallel_read_safe": True}
