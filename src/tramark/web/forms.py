"""What the form for a new trace says: the suspect, how it is fed and read, and how far the trace may go."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tramark.errors import SettingError
from tramark.suspects.conventions import Conventions
from tramark.suspects.http import HttpOptions, from_environment
from tramark.suspects.json_api import JsonTemplate
from tramark.suspects.schema import conventions_from, template_from

Form = Mapping[str, str]

CHOICES = ("colour", "layout", "resample", "dtype")
EDGES = ("size", "crop")
NUMBERS = ("value_range", "mean", "std")


@dataclass(frozen=True)
class Order:
    """What the auditor asks for.

    Parameters
    ----------
    url : the suspect's address; empty if a file was uploaded.
    model : the architecture of a file of weights, or the name of a server's model.
    case : the number of the unfinished case that goes on.
    options : of `trace`.
    """

    url: str
    model: str | None
    conventions: Conventions
    template: JsonTemplate | None
    http: HttpOptions
    case: int | None
    options: dict[str, Any] = field(default_factory=dict)


def order_in(form: Form) -> Order:
    """The order that a form gives; `SettingError` says which field is wrong."""
    budget = _number(form, "budget", int)
    bound = _number(form, "false_accusation", float)
    return Order(
        url=_text(form, "url"),
        model=_text(form, "model") or None,
        conventions=conventions_from(conventions_in(form), "the conventions"),
        template=template_from(_json(form, "template"), "the template") if _text(form, "template") else None,
        http=HttpOptions(
            rate=_number(form, "rate", float),
            budget=budget,
            headers=from_environment(_text(form, "headers").split()),
        ),
        case=_number(form, "case", int),
        options={
            "false_accusation": 1e-6 if bound is None else bound,
            "budget": budget,
            "rule": _text(form, "rule") or "default",
            "exhaustive": bool(_text(form, "exhaustive")),
        },
    )


def conventions_in(form: Form) -> dict[str, Any]:
    """The conventions that a form states, as a JSON file would have them.

    >>> conventions_in({"size": "32 x 32", "mean": "0.5", "flat": "on", "labels": "cat\\ndog"})
    {'size': [32, 32], 'mean': [0.5], 'flat': True, 'labels': ['cat', 'dog']}
    """
    found: dict[str, Any] = {name: _numbers(form, name, int) for name in EDGES if _text(form, name)}
    found |= {name: _numbers(form, name, float) for name in NUMBERS if _text(form, name)}
    found |= {name: _text(form, name) for name in CHOICES if _text(form, name)}
    if _text(form, "flat"):
        found["flat"] = True
    if (threshold := _number(form, "threshold", float)) is not None:
        found["threshold"] = threshold
    if labels := _text(form, "labels"):
        lines = [line.strip() for line in labels.splitlines() if line.strip()]
        found["labels"] = _json(form, "labels") if labels[0] in "{[" else lines
    return found


def fields_of(recorded: Mapping[str, Any]) -> dict[str, str]:
    """The form's fields for the conventions that a case records: `conventions_in` reads them again."""
    stated = recorded.get("conventions") or {}
    found = {name: ", ".join(map(str, stated[name])) for name in (*EDGES, *NUMBERS) if stated.get(name)}
    found |= {name: str(stated[name]) for name in (*CHOICES, "threshold") if stated.get(name) is not None}
    if stated.get("flat"):
        found["flat"] = "on"
    if stated.get("labels"):
        found["labels"] = json.dumps(stated["labels"], ensure_ascii=False)
    return found


def _text(form: Form, name: str) -> str:
    return form.get(name, "").strip()


def _number(form: Form, name: str, kind: type[int] | type[float]) -> Any:
    text = _text(form, name)
    try:
        return kind(text) if text else None
    except ValueError:
        raise SettingError(f"{name.replace('_', ' ')} is {text[:40]!r}: give a number") from None


def _numbers(form: Form, name: str, kind: type[int] | type[float]) -> list[Any]:
    words = [word for word in re.split(r"[\s,;x×]+", _text(form, name).strip("[]()")) if word]
    try:
        return [kind(word) for word in words]
    except ValueError:
        raise SettingError(f"{name.replace('_', ' ')} is {_text(form, name)[:40]!r}: give numbers and commas") from None


def _json(form: Form, name: str) -> Any:
    try:
        return json.loads(_text(form, name))
    except ValueError:
        raise SettingError(f"the {name} are not JSON: check brackets and quotes") from None
