"""Cases: every trace with a vault, the error that all of them spend, and the questions that are burned.

A case is sealed like everything else, and the log says that it was opened, with what error, how it was closed and what
burned. Cases have a lock of their own, so that a federation can train while a suspect is traced. It admits one trace
at a time: the bound over the life of a vault holds for cases one after the other (docs/explanation/evidence.md).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

from tramark.errors import ErrorSpent, SettingError, VaultError
from tramark.evidence.case import Asked, Case, Closed
from tramark.evidence.commitment import canonical
from tramark.evidence.scores import Scores
from tramark.vault.log import Entry
from tramark.vault.storage import Storage, now

BOOK = "cases"
"""The sealed file with the limit and the burned questions."""

Burned = Mapping[str, Sequence[int]]
"""By client, questions of the pool."""


def is_case(name: str) -> bool:
    """Whether a sealed file of that name holds a case."""
    return re.fullmatch(r"case-[0-9]+", name) is not None


class Cases:
    """The cases of a vault, for reading; `burn` and `set_limit` write, and `casework` lets a trace write.

    >>> import tempfile; from pathlib import Path; from tramark.keys.keyring import Keyring
    >>> from tramark.vault.lock import make_key_file; from tramark.vault.store import Vault
    >>> folder, ring = Path(tempfile.mkdtemp()), Keyring.generate(clients=["alice"], classes=10, input_shape=(4,))
    >>> vault = Vault.create(folder / "vault", ring, key_file=make_key_file(folder / "vault.key"))
    >>> vault.cases.set_limit(1e-5)
    >>> vault.cases.all(), vault.cases.spent, vault.cases.limit
    ([], 0.0, 1e-05)
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def all(self) -> list[Case]:
        """Every case, in the order of opening."""
        numbers = sorted(int(name.removeprefix("case-")) for name in self._storage.head().sealed if is_case(name))
        return [self.get(number) for number in numbers]

    def get(self, number: int) -> Case:
        """The case of that number."""
        if f"case-{number}" not in self._storage.head().sealed:
            raise VaultError(f"the vault has no case {number}: `tramark vault cases` lists them")
        return Case.from_dict(json.loads(self._storage.get(f"case-{number}")))

    @property
    def spent(self) -> float:
        """The error spent over the life of the vault. A case spends its error when it is opened, finished or not."""
        return float(sum((Decimal(repr(case.false_accusation)) for case in self.all()), Decimal(0)))

    @property
    def limit(self) -> float | None:
        """The most error that all cases together may spend; None if there is no limit."""
        limit = self._book()["limit"]
        return None if limit is None else float(limit)

    @property
    def burned(self) -> dict[str, tuple[int, ...]]:
        """By client, the questions that no later case counts for it."""
        return {client: tuple(questions) for client, questions in self._book()["burned"].items()}

    def set_limit(self, limit: float | None) -> None:
        """Allow all cases together to spend so much error and no more; None for no limit."""
        if limit is not None and not 0 < limit < 1:
            raise SettingError(f"a limit of {limit}: it is a probability, such as 1e-5")
        with self.casework() as work:
            text = None if limit is None else repr(limit)
            work.commit([{"event": "case-limit", "limit": text}], book=work.book() | {"limit": text})

    def burn(self, case: Case, questions: Burned, why: str) -> None:
        """Never count these questions for these clients again, except in cases that have asked them already.

        Call it before anything is handed over: when it returns, the disk has it.
        """
        with self.casework() as work:
            work.mark_burned(case.number, questions, why)

    @contextmanager
    def casework(self) -> "Iterator[Casework]":
        """The right to write cases; `VaultBusy` while another trace has it."""
        with closing(self._storage.for_cases()) as storage:
            yield Casework(storage)

    def _book(self) -> dict[str, Any]:
        if BOOK not in self._storage.head().sealed:
            return {"limit": None, "burned": {}}
        return dict(json.loads(self._storage.get(BOOK)))


class Casework(Cases):
    """The cases of a vault, open for one trace."""

    def open(self, **fields: Any) -> Case:
        """Open a case, with what `Case` has but number, time, head and what is spent. It is logged and synced.

        `ErrorSpent` if it would exceed the limit: then nothing is written.
        """
        cases, error = self.all(), fields["false_accusation"]
        spent = float(Decimal(repr(self.spent)) + Decimal(repr(error)))
        if self.limit is not None and error and spent > self.limit:
            raise ErrorSpent(
                f"all traces with this vault together may spend an error of {self.limit:g}, and {self.spent:g} is "
                f"spent: a trace at {error:g} would exceed it. Nothing was asked"
            )
        head = self._storage.head()
        number = 1 + max((case.number for case in cases), default=0)
        case = Case(number=number, opened=now(), head=(head.entries, head.hash), spent=spent, **fields)
        suspect = {name: value for name, value in vars(case.suspect).items() if value is not None}
        entry = {"event": "case-opened", "case": number, "suspect": suspect, "rule": case.rule}
        self.commit([entry | {"false_accusation": repr(error), "spent": repr(spent)}], case)
        return case

    def reopen(self, case: Case) -> Case:
        """Go on with a case. Questions that it has not asked yet, and that burned meanwhile, no longer count in it."""
        asked, burned = set(case.questions), dict(case.burned)
        for client, questions in self.burned.items():
            later = {*burned.get(client, ()), *(question for question in questions if question not in asked)}
            if later:
                burned[client] = tuple(sorted(later))
        case = replace(case, burned=burned)
        self.commit([{"event": "case-reopened", "case": case.number}], case)
        return case

    def sending(self, case: Case, queries: Sequence[tuple[int, int]]) -> Case:
        """Note what a remote suspect is about to be sent: from then on somebody may know it."""
        case = replace(case, sent=tuple(dict.fromkeys((*case.sent, *queries))))
        self.commit([], case)
        return case

    def keep(self, case: Case, answers: Sequence[tuple[int, int, int, Scores | None]], *, later: bool = False) -> Case:
        """Keep answers that came. When this returns, the disk has them, unless they are to be written `later`."""
        known, time = {query[:2] for query in answers}, now()
        new = [Asked(question, variant, answer, time, scores) for question, variant, answer, scores in answers]
        case = replace(
            case,
            asked=(*case.asked, *new),
            sent=tuple(query for query in case.sent if query not in known),
        )
        if not later:
            self.commit([], case)
        return case

    def close(self, case: Case, burning: Burned, **fields: Any) -> Case:
        """Close a case with its verdict (what `Closed` has but the time), and burn what its suspect may have seen."""
        case = replace(case, closed=Closed(time=now(), **fields))
        assert case.closed is not None
        entry = {"event": "case-closed", "case": case.number, "finding": case.closed.finding}
        self.mark_burned(case.number, burning, "a remote suspect was asked", [entry], case)
        return case

    def mark_burned(
        self, number: int, questions: Burned, why: str, entries: Sequence[Entry] = (), case: Case | None = None
    ) -> None:
        """Burn questions for clients, with further entries of the log and the case they belong to."""
        book = self.book()
        new = {
            client: sorted(fresh)
            for client, wanted in questions.items()
            if (fresh := set(wanted) - set(book["burned"].get(client, ())))
        }
        for client, added in new.items():
            book["burned"][client] = sorted({*book["burned"].get(client, ()), *added})
        burned: list[Entry] = [{"event": "burned", "case": number, "why": why, "questions": new}] if new else []
        if burned or entries:
            self.commit([*entries, *burned], case, book=book if new else None)

    def book(self) -> dict[str, Any]:
        """The limit and the burned questions, as they are sealed."""
        return self._book()

    def commit(self, entries: Sequence[Entry], case: Case | None = None, book: Mapping[str, Any] | None = None) -> None:
        """Write entries of the log, a case and the book, all or nothing."""
        blobs = {} if case is None else {f"case-{case.number}": canonical(case.to_dict())}
        self._storage.commit(entries, blobs | ({} if book is None else {BOOK: canonical(book)}))
