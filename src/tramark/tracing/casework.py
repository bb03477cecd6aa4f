"""A trace as a case of a vault: opened before the first question, kept answer by answer, closed with the verdict."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from tramark.errors import Damaged, SettingError
from tramark.evidence.case import RULE, RULES, Case, Suspected
from tramark.evidence.commitment import canonical
from tramark.evidence.federation import FEDERATION
from tramark.evidence.looks import Query
from tramark.keys.keyring import Keyring
from tramark.suspects.base import Suspect
from tramark.tracing.interview import Step
from tramark.tracing.suspected import as_issued, confinement_of, conventions_of, suspected_of
from tramark.tracing.verdict import Verdict
from tramark.tracing.weighing import Plan, weigh_all
from tramark.vault.cases import Casework
from tramark.vault.store import Vault


class Record:
    """The case that a trace writes while it asks."""

    def __init__(self, work: Casework, case: Case) -> None:
        self.work, self.case = work, case

    def sending(self, queries: Sequence[Query]) -> None:
        """Note what a remote suspect is about to see."""
        if self.case.suspect.remote:
            self.case = self.work.sending(self.case, queries)

    def keep(self, steps: Sequence[Step]) -> None:
        """Keep answers that came. Those of a file can be had again, so they wait for `flush` or `close`."""
        self.case = self.work.keep(self.case, steps, later=not self.case.suspect.remote)

    def flush(self) -> None:
        """Write what is kept: the trace was interrupted."""
        self.work.commit([], self.case)

    def close(self, verdict: Verdict) -> Case:
        """Close the case. Whoever runs a remote suspect that carries a mark knows all that it was asked and said."""
        seen = seen_by(self.case, verdict.clients, ours=verdict.finding == "federation")
        return self.work.close(
            self.case,
            seen if self.case.suspect.remote else {},
            finding=verdict.finding,
            clients=verdict.clients,
            by_company=verdict.by_company,
            premise=verdict.premise,
            not_cleared=verdict.not_cleared,
            power=verdict.power,
        )


def seen_by(case: Case, accused: Collection[str], *, ours: bool) -> dict[str, tuple[int, ...]]:
    """What the suspect of a case learnt if it carries some marks: by client, and for the federation, the questions."""
    common = tuple(question for question in case.questions if question in case.common)
    own = tuple(question for question in case.questions if question not in case.common)
    # Whoever carries a client's mark carries the common one, too.
    return dict.fromkeys(accused, own) | ({FEDERATION: common} if common and (accused or ours) else {})


def begin(
    vault: Vault,
    work: Casework,
    suspect: nn.Module | Suspect,
    *,
    number: int | None,
    rule: str,
    false_accusation: float,
    suspected: Suspected | None,
    probe: Mapping[str, Any] | None = None,
) -> Record:
    """A new case, or the case of that number, which goes on. The vault must be sound, and the suspect the same."""
    if found := vault.audit():
        raise Damaged(f"{found[0]}: a damaged vault is not traced with; run `tramark vault audit`. Nothing was asked")
    keyring, suspected = vault.keyring, suspected or suspected_of(suspect)
    _burn_unfinished(work, keyring, but=number)
    error = false_accusation if rule == RULE else 0.0
    fixed = {
        "suspect": suspected,
        "conventions": conventions_of(suspect),
        "rule": rule,
        "false_accusation": error,
        "commitment": vault.commitments[-1].digest,
    }
    if number is not None:
        case = work.get(number)
        _check_same(case, fixed)
        return Record(work, work.reopen(case))
    burned = work.burned
    times = Counter(question for questions in burned.values() for question in questions)
    case = work.open(
        **fixed,
        clients=len(keyring.clients),
        classes=keyring.classes,
        variants=keyring.held_out_variants,
        # What is burned is known to those who saw it, so the order tells them nothing.
        order=tuple(sorted(keyring.chosen, key=lambda question: times[question])),
        common=keyring.common,
        burned=burned,
        identical=as_issued(suspect, vault.log()),
        probe=probe,
        confinement=confinement_of(suspect),
    )
    return Record(work, case)


def _check_same(case: Case, fixed: dict[str, object]) -> None:
    """Raise an error unless a case can go on: answers of one suspect say nothing of another."""
    if case.closed is not None:
        raise SettingError(f"case {case.number} is closed: open a new one")
    if not case.suspect.remote and case.suspect.sha256 is None:
        raise SettingError(f"case {case.number} cannot go on: its suspect has no digest to tell it by. Open a new one")
    words = {
        "suspect": "another suspect",
        "conventions": "a suspect that was fed or read in another way",
        "rule": "another rule",
        "false_accusation": "another bound on false accusations",
        "commitment": "an earlier state of the vault: clients joined, or other questions were chosen",
    }
    for name, what in words.items():
        old, new = getattr(case, name), fixed[name]
        if (canonical(old) != canonical(new)) if name == "conventions" else old != new:
            raise SettingError(f"case {case.number} is about {what}: open a new one")


def _burn_unfinished(work: Casework, keyring: Keyring, *, but: int | None) -> None:
    """Burn what remote suspects of unfinished cases were asked, for whomever their answers accuse already."""
    for case in work.all():
        if case.closed is None and case.suspect.remote and case.rule in RULES and case.number != but:
            looks = weigh_all(
                replay({(one.question, one.variant): one.answer for one in case.asked}),
                keyring,
                Plan.of(case),
                false_accusation=case.false_accusation,
                exhaustive=True,
                scores=case.scores.get,
            )
            accused = {keyring.clients[row] for look in looks.clients for row in look.accused}
            ours = any(look.accused for look in looks.federation)
            work.mark_burned(case.number, seen_by(case, accused, ours=ours), "an unfinished case")


def steps_of(case: Case) -> tuple[Step, ...]:
    """What a case has asked, as the interview had it."""
    return tuple(Step(one.question, one.variant, one.answer, one.scores) for one in case.asked)


def replay(known: dict[Query, int]) -> Callable[[Sequence[Query]], Iterator[int]]:
    """Answers that are known already, up to the first that is not."""

    def answers(plan: Sequence[Query]) -> Iterator[int]:
        for query in plan:
            if query not in known:
                return
            yield known[query]

    return answers
