"""The verdict of a closed case again, from what the vault recorded of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from tramark.errors import SettingError, SuspectError
from tramark.evidence.case import RULES, Case
from tramark.evidence.looks import Query
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Answers
from tramark.tracing.casework import steps_of
from tramark.tracing.interview import Interview, Step
from tramark.tracing.labels import by_accuracy
from tramark.tracing.trace import by_evidence
from tramark.tracing.verdict import Verdict
from tramark.tracing.weighing import Plan


def keyring_of(case: Case, keyring: Keyring) -> Keyring:
    """The keyring with the clients that there were when a case was opened."""
    clients = keyring.clients[: case.clients]
    return replace(keyring, clients=clients, departed=keyring.departed & set(clients))


def verdict_of(case: Case, keyring: Keyring) -> Verdict:
    """The verdict of a closed case, weighed again from its answers; `keyring` is the vault's.

    A comparison with unmarked models has no figures, because they are not recorded.
    """
    closed = case.closed
    if closed is None:
        raise SettingError(f"case {case.number} is not closed: finish its trace first")
    return replace(
        _weighed(case, keyring_of(case, keyring), closed.premise.surviving),
        finding=closed.finding,
        clients=closed.clients,
        by_company=closed.by_company,
        premise=closed.premise,
        not_cleared=closed.not_cleared,
        power=closed.power,
        case=case,
    )


def _weighed(case: Case, keyring: Keyring, surviving: float) -> Verdict:
    steps = steps_of(case)
    if case.rule in RULES:
        for exhaustive in (False, True):
            replayed = _Replay(keyring, steps)
            verdict = by_evidence(replayed, Plan.of(case), case.false_accusation, exhaustive, surviving)
            # A trace that went on after it had named somebody was an exhaustive one.
            if replayed.used == len(steps):
                break
        return verdict
    if case.rule == "paper":
        return by_accuracy(_Replay(keyring, steps))
    return Verdict("inconclusive", (), len(steps), None, {}, {}, {}, 0, None, steps)


class _Replay(Interview):
    """An interview whose answers are all known, and which asks nobody."""

    def __init__(self, keyring: Keyring, steps: Sequence[Step]) -> None:
        super().__init__(_Silent(), keyring, budget=len(steps), transcript=steps)
        self.used = 0

    def answers(self, plan: Sequence[Query]) -> Iterator[int]:
        for answer in super().answers(plan):
            self.used += 1
            yield answer


class _Silent:
    """Stands for a suspect that is not there any more."""

    def ask(self, raw: Tensor) -> Answers:
        raise SuspectError("a recorded case asks nobody")
