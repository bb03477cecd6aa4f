"""What a round did, for people to read and for the vault to keep."""

from dataclasses import dataclass, field

from tramark.marks.injection import Made
from tramark.marks.survival import Survived


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

    def __str__(self) -> str:
        words = [f"round {self.round}: {len(self.used)} updates used"]
        if self.refused:
            words.append("refused " + ", ".join(f"{client} ({why})" for client, why in self.refused.items()))
        if self.survived is not None:
            survived = self.survived
            words.append(
                f"after training {survived.mean:.0%} of the answers were left, {survived.least:.0%} at the least, with "
                f"a margin of {survived.margin:.1f}"
            )
        return ", ".join([*words, self._next])

    @property
    def _next(self) -> str:
        if not self.marked:
            return "not marked yet" if self.begins_after is None else f"marks begin after round {self.begins_after}"
        if self.made is None:
            return "marked"
        made = self.made
        words = f"marked in {' and '.join(made.layers)}: {made.questions} questions, margin {made.margin:.1f}"
        words += f", cost {made.cost:.3f}" + ("" if made.reached > 0.995 else f", {made.reached:.0%} of them answered")
        return words + (f", without a mark: {', '.join(made.unmarked)}" if made.unmarked else "")
