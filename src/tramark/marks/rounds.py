"""What a round did, for people to read and for the vault to keep."""

from dataclasses import dataclass, field
from statistics import median

from tramark.marks.injection import Made
from tramark.marks.survival import Survived

FAINT = 0.5
"""Warn if a smaller share of the marks survives; the rest of the answers is right by chance, one in r."""

APART = 0.5
"""Warn of a client whose survival is so much below the median of those asked."""

STRAINED = 2.0
"""Warn if clients' updates of the other layers are so much larger than before there were marks."""

REACHED = 0.9
"""Warn if issued models give a smaller share of their answers."""


@dataclass(frozen=True)
class RoundReport:
    """What a round used, what training left of its marks, and what the next marks are like."""

    round: int
    used: tuple[str, ...]
    """Whose updates went in."""
    refused: dict[str, str] = field(default_factory=dict)
    """Whose did not, and why."""
    marked: bool = False
    """Whether the models that are sent next carry marks."""
    survived: Survived | None = None
    """What was left of the marks in the returned models; None if those had none."""
    made: Made | None = None
    """The marks of the models that are sent next; None if they have none, or if nothing is known of them."""
    begins_after: int | None = None
    """The round after which marks begin, if that is known and still to come."""
    unbearable: bool = False
    """Whether marks are due, but no layer bears them as the base is now."""
    unlearnt: bool = False
    """Whether marks are due, but wait for a base that answers different questions differently."""
    strained: float = 0.0
    """How large clients' updates of layers without marks are, beside those before the marks; zero if not known."""
    discarded: str = ""
    """Why the round was undone, if it was: base and marks are those of the round before."""

    def __str__(self) -> str:
        words = [f"round {self.round}: {len(self.used)} updates used"]
        if self.discarded:
            words = [f"round {self.round}: undone, as {self.discarded}"]
        if self.refused:
            words.append("refused " + ", ".join(f"{client} ({why})" for client, why in self.refused.items()))
        if self.survived is not None:
            survived = self.survived
            words.append(
                f"after training {survived.mean:.0%} of the answers were left, {survived.least:.0%} at the least, with "
                f"a margin of {survived.margin:.1f}"
                + (f"; scores tell {survived.told:.1f} times what names a client" if survived.told > 0 else "")
            )
        return ", ".join([*words, self._next])

    def concerns(self, classes: int) -> list[str]:
        """What to warn of: rounds undone, marks that are not there or disturb, marks that training takes away."""
        found = []
        if self.discarded:
            found.append(
                f"the round was undone, as {self.discarded}. Base and marks are as before it. If it happens again, a "
                "client is hostile or training has diverged: see which updates came in, or use an aggregation rule "
                "that bears hostile clients"
            )
        if self.strained > STRAINED:
            found.append(
                f"clients' updates are {self.strained:.1f} times as large as before there were marks: issued models "
                "and base have come apart, and clients' training repairs what the marks disturb. A hostile client may "
                "have misled the server about the clients' data: look for one, or go back (tramark vault rewind)"
            )
        if odd := self._apart:
            found.append(
                f"the marks of {', '.join(odd)} are gone from what they returned, while others' are there: they train "
                "on other data, or they try to remove them"
            )
        if self.unbearable:
            found.append(
                "marks are due, but no layer of this net bears any that would outlive training: models are sent "
                "without marks, and cannot be traced. Layers are tried again after each round. A wider net, fewer "
                "questions (Keyring.generate(questions=…)) or smaller steps of the clients may help; "
                "ClosedForm(margin=…) makes marks in any case"
            )
        if self.unlearnt:
            found.append(
                "marks are due, but the model still answers all questions alike, as it does before it has learnt "
                "anything: marks would hold it back, so models are sent without any, and cannot be traced. They begin "
                "as soon as it has learnt, or when half of the rounds that were left are over; "
                "TraMark(warmup_rounds=…) begins in any case"
            )
        if self.made is not None and (self.made.unmarked or self.made.reached < REACHED):
            without = self.made.unmarked
            found.append(
                f"the models that are sent next give {self.made.reached:.0%} of their answers"
                + (f", and those of {', '.join(without)} carry no mark and cannot be traced" if without else "")
                + ": the layer does not bear so many. More warm-up rounds, fewer questions "
                "(Keyring.generate(questions=…)) or another layer (ClosedForm(layer_names=…)) may help"
            )
        if self.survived is not None and self.survived.mean < FAINT + (1 - FAINT) / classes:
            scores = " where only labels are to be had; its scores tell enough" if self.survived.told >= 1 else ""
            found.append(
                f"clients' training leaves {self.survived.mean:.0%} of their marks' answers: what they leak after "
                f"training cannot be traced well{scores}. More warm-up rounds, a larger margin "
                "(ClosedForm(margin=…)) or another layer (ClosedForm(layer_names=…)) may help"
            )
        return [f"round {self.round}: {concern}" for concern in found]

    @property
    def _apart(self) -> list[str]:
        """The clients whose survival is far below the others'."""
        clients = self.survived.clients if self.survived is not None else {}
        usual = median(clients.values()) if len(clients) > 2 else 0.0
        return [client for client, share in clients.items() if share <= usual - APART]

    @property
    def _next(self) -> str:
        if self.unbearable:
            return "not marked: no layer bears marks yet"
        if self.unlearnt:
            return "not marked: the model has not learnt anything yet"
        if not self.marked:
            return "not marked yet" if self.begins_after is None else f"marks begin after round {self.begins_after}"
        if self.made is None:
            return "marked"
        made = self.made
        words = f"marked in {' and '.join(made.layers)}: {made.questions} questions, margin {made.margin:.1f}"
        words += f", cost {made.cost:.3f}" + ("" if made.reached > 0.995 else f", {made.reached:.0%} of them answered")
        return words + (f", without a mark: {', '.join(made.unmarked)}" if made.unmarked else "")
