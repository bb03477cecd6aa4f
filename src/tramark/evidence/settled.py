"""Whether answers were committed to before models with marks were issued, as far as a vault's log tells.

A commitment to the answers to chosen questions binds them only from its own time on. So it must stand in the log before
the first model with a mark, and that of a client which joined later before the client's first model with a mark.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tramark.evidence.commitment import Commitment
from tramark.evidence.published import choice_of


class Settled:
    """Reads a log, entry by entry; `late` says what was committed to too late, or is None.

    Nothing is late in vaults that committed to the answers to a whole pool, as early versions did, or to labels.
    """

    def __init__(self, links: Sequence[Commitment]) -> None:
        self.late: str | None = None
        self._choice = choice_of(links).digest if links[-1].answers else None
        self._settled = False
        self._bound: set[str] = set()

    def read(self, entry: Mapping[str, Any]) -> None:
        """Read the next entry of the log."""
        if self._choice is None or self.late is not None:
            return
        event = entry.get("event")
        if event == "issued" and entry.get("marked"):
            if not self._settled:
                self.late = f"entry {entry['n']} issues a marked model before the answers in use were committed to"
            elif str(entry.get("client")) not in self._bound:
                self.late = f"entry {entry['n']} issues a marked model to a client whose answers were not committed to"
        elif "commitment" in entry and event in ("created", "client-joined", "questions-chosen"):
            self._settled = self._settled or entry["commitment"] == self._choice
            names = entry.get("clients", [entry.get("client")])
            if isinstance(names, list):  # A log that was tampered with may have anything here.
                self._bound.update(name for name in names if isinstance(name, str))
