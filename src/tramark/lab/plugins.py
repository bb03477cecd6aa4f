"""Methods and attacks of other packages: those that they offer as entry points.

A package that offers a method or an attack of its own names it in its pyproject.toml:

    [project.entry-points."tramark.methods"]
    my-method = "my_package.method:MyMethod"

    [project.entry-points."tramark.attacks"]
    my-attack = "my_package.attack:MyAttack"

Once it is installed, `tramark run --method my-method`, `tramark attack --attack my-attack` and the arena know it.
"""

import warnings
from collections.abc import Collection
from importlib.metadata import entry_points
from typing import Any

from tramark.errors import one_line


def plugged(group: str, known: Collection[str]) -> dict[str, Any]:
    """What installed packages offer in a group, by name. Names that are `known` already stay what they are.

    What cannot be loaded is left out, with a warning.
    """
    found: dict[str, Any] = {}
    for entry in entry_points(group=group):
        if entry.name in known or entry.name in found:
            warnings.warn(f"{entry.value} offers {entry.name!r} in {group}, but that name is taken", stacklevel=2)
            continue
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            warnings.warn(
                f"{entry.name!r} in {group} ({entry.value}) cannot be loaded: {one_line(error)}", stacklevel=2
            )
    return found
