"""How a suspect was fed and read, in words, from what its case records."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ADAPTERS = {
    "LoadedSuspect": "a file, run in a process of its own",
    "V2Suspect": "a server that speaks the Open Inference Protocol",
    "JsonSuspect": "a JSON API, asked by a template",
    "ModuleSuspect": "a module, run in the process of the trace",
}
_NORMALISED = ("value_range", "mean", "std")
_SHOWN = 24


def fed(recorded: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of all that a case records of how its suspect was asked, for a table.

    >>> dict(fed({"adapter": "LoadedSuspect", "conventions": {"size": [32, 32], "mean": ["0.5"], "labels": None}}))
    {'Asked as': 'a file, run in a process of its own', 'Size': '32 × 32', 'Mean': '0.5', 'Layout': 'NCHW'}
    """
    return list(_rows(recorded))


def label_names(recorded: Mapping[str, Any]) -> dict[int, str]:
    """The suspect's name of each of our labels, where it has names and not just numbers.

    >>> label_names({"conventions": {"labels": {"cat": 0, "dog": 1, "horse": -1}}})
    {0: 'cat', 1: 'dog'}
    """
    labels = (recorded.get("conventions") or {}).get("labels") or {}
    pairs = labels.items() if isinstance(labels, Mapping) else ((name, ours) for ours, name in enumerate(labels))
    return {ours: name for name, ours in pairs if ours >= 0 and isinstance(name, str) and not name.isdecimal()}


def _rows(recorded: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    adapter = recorded.get("adapter", "")
    yield "Asked as", _ADAPTERS.get(adapter, adapter) or "a function of the auditor’s"
    stated = dict(recorded.get("conventions") or {})
    prepared = stated.pop("prepare", None)
    for name in ("size", "resample", "crop", "colour", *_NORMALISED, "dtype", "threshold"):
        if (value := stated.pop(name, None)) not in (None, [], ()):
            yield name.replace("_", " ").capitalize(), _words(value, " × " if name in ("size", "crop") else ", ")
        elif name == "value_range" and prepared and not any(stated.get(one) for one in _NORMALISED):
            yield "Normalised", "as the federation’s own models are"
    if "layout" in stated or recorded.get("conventions"):
        yield "Layout", stated.pop("layout", "NCHW") + (", as one row" if stated.pop("flat", False) else "")
    if labels := stated.pop("labels", None):
        pairs = labels.items() if isinstance(labels, Mapping) else ((name, ours) for ours, name in enumerate(labels))
        yield "Labels", _words([f"{name} → {'none' if ours < 0 else ours}" for name, ours in pairs], ", ")
    template = recorded.get("template") or {}
    yield from ((f"Template: {name}", _words(value, ", ")) for name, value in template.items() if value)
    others = {name: recorded[name] for name in recorded if name not in ("adapter", "conventions", "template", "url")}
    yield from ((name.replace("_", " ").capitalize(), _words(value, ", ")) for name, value in others.items())


def _words(value: Any, between: str) -> str:
    if isinstance(value, Mapping):
        return _words([f"{name}: {_words(one, ', ')}" for name, one in value.items()], "; ")
    if isinstance(value, Sequence) and not isinstance(value, str):
        more = f" and {len(value) - _SHOWN} more" if len(value) > _SHOWN else ""
        return between.join(_words(one, ", ") for one in value[:_SHOWN]) + more
    return str(value)
