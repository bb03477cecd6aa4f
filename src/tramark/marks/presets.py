"""The ways to make marks that have a name."""

from dataclasses import replace
from typing import Any

from tramark.errors import SettingError
from tramark.marks.closed_form import ClosedForm
from tramark.marks.gradient import GradientSteps

PRESETS: dict[str, ClosedForm | GradientSteps] = {
    "default": ClosedForm(),
    "paper": GradientSteps(),
    "released": GradientSteps(per_tensor=True, batch_size=32, summed=True),
}
"""`default` is ours. `paper` follows the paper's text, `released` its authors' code."""


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
