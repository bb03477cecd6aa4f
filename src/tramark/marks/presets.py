"""The ways to make marks that have a name."""

from dataclasses import replace
from typing import Any

from tramark.errors import SettingError
from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps

PRESETS: dict[str, ClosedForm | GradientSteps] = {
    "default": ClosedForm(),
    "paper": GradientSteps(),
    "released": GradientSteps(per_tensor=True, local=True, batch_size=32, shuffled=True, summed=True, dropout=True),
}
"""`default` is ours.

`paper` follows the paper's text: the k·d smallest weights of the base after the warm-up, and five full-batch steps in
evaluation mode. Algorithm 2 begins to mark in round αT, but chooses the region in round αT + 1: here both happen as the
text says, after αT rounds, so that the models carry marks after round αT + 1. Answers are told by the keyring: the
paper's are labels. Ties among weights go to the earlier place.

`released` follows the authors' code: 1 % of each tensor, chosen from the first client's model of round αT − 1; first
marks after round αT; 20 shuffled steps in training mode that add up all gradients. It departs from the code where that
would depend on the machine: ties go to the earlier place, and random numbers are not torch's global ones. Batch norm
keeps its statistics, which the released models do not have. Without the first client's model (no warm-up, or a warm-up
that another run played), the region is chosen from the base.
"""


def preset_named(name: str, **options: Any) -> ClosedForm | GradientSteps:
    """The preset of a name, with some of its parameters changed.

    >>> preset_named("paper", ratio=0.05).ratio
    0.05
    """
    if name not in PRESETS:
        raise SettingError(f"unknown preset {name!r}: use one of {', '.join(PRESETS)}")
    try:
        return replace(PRESETS[name], **options)
    except TypeError:
        raise SettingError(f"the preset {name!r} does not take {' and '.join(options)}") from None
