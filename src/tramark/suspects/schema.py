"""What the JSON files of conventions and templates may say.

The schemas are in the language of json-schema.org, of which a few words suffice here; docs/schemas holds the same, for
editors. A file that does not fit is refused, and an unknown key is named with the known one that is most like it.
"""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from tramark.errors import SettingError, one_line
from tramark.suspects.conventions import LARGEST_EDGE, Conventions
from tramark.suspects.json_api import JsonTemplate

Schema = Mapping[str, Any]

EDGES = {
    "type": "array",
    "items": {"type": "integer", "minimum": 1, "maximum": LARGEST_EDGE},
    "minItems": 2,
    "maxItems": 2,
}
NUMBERS = {"type": "array", "items": {"type": "number"}}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}

CONVENTIONS: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "How a suspect is fed and how its labels are read",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "size": EDGES | {"description": "height and width to which images are resized"},
        "resample": {"enum": ["bilinear", "bicubic", "nearest"], "description": "how they are resized"},
        "crop": EDGES | {"description": "height and width of the middle that is cut out after resizing"},
        "colour": {"enum": ["grey", "rgb", "bgr"], "description": "to which images are converted"},
        "layout": {"enum": ["NCHW", "NHWC"], "description": "channels before or after height and width"},
        "flat": {"type": "boolean", "description": "each input is one row of numbers"},
        "value_range": NUMBERS | {"minItems": 2, "maxItems": 2, "description": "the values that 0 and 255 become"},
        "mean": NUMBERS | {"description": "subtracted after value_range, one per channel"},
        "std": NUMBERS | {"description": "divided by after mean, one per channel"},
        "dtype": {"type": "string", "description": "the type that the model wants, such as float16 or uint8"},
        "labels": {
            "description": "our label of each of the suspect's, or the suspect's labels in the order of ours",
            "anyOf": [
                {"type": "object", "additionalProperties": {"type": "integer", "minimum": -1}},
                {"type": "array", "items": {"type": ["string", "integer"]}},
            ],
        },
        "threshold": {"type": "number", "description": "above it, a single output means label 1"},
    },
}

TEMPLATE: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "How any JSON API is asked one question, and where its answer is",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "body": {"description": 'what is sent; "{list}" and "{png}" stand for the question'},
        "label": {"type": "string", "description": "dotted path to the label; empty for the whole response"},
        "scores": {"type": "string", "description": "dotted path to the scores; empty for the whole response"},
        "send": {"enum": ["json", "form", "multipart", "png"], "description": "as what the body is sent"},
        "upload": {"type": "string", "description": "form field in which the image is uploaded as a file"},
        "then": {"type": "string", "description": "URL at which the answer is fetched; {path} stands for a value"},
        "ready": TEXTS | {"description": "dotted paths and the values that they have once the answer is there"},
        "method": {"enum": ["POST", "PUT", "PATCH", "GET"], "description": "the HTTP method"},
        "headers": TEXTS | {"description": "more headers; ${NAME} stands for an environment variable"},
    },
}

KINDS = {"array": list, "object": Mapping, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def conventions_from(value: Any, where: str) -> Conventions:
    """The conventions in a JSON value; `where` says in messages where it comes from."""
    check(value, CONVENTIONS, where)
    return Conventions(**value)


def template_from(value: Any, where: str) -> JsonTemplate:
    """The template in a JSON value; `where` says in messages where it comes from."""
    check(value, TEMPLATE, where)
    return JsonTemplate(**value)


def check(value: Any, schema: Schema, where: str) -> None:
    """Raises an error that says what in a JSON value is not as the schema says."""
    if "anyOf" in schema:
        if not any(_fits(value, one) for one in schema["anyOf"]):
            raise SettingError(f"{where}: {schema['description']} are wanted")
        return
    if "enum" in schema and value not in schema["enum"]:
        raise SettingError(f"{where} is {one_line(repr(value), 60)}: say {', '.join(schema['enum'])}")
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(_is(value, kind) for kind in kinds):
            raise SettingError(f"{where} is {one_line(repr(value), 60)}: {' or '.join(kinds)} is wanted")
    if isinstance(value, Mapping):
        _check_object(value, schema, where)
    if isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not least <= len(value) <= most:
            raise SettingError(f"{where} has {len(value)} entries: {least} are wanted")
        for number, one in enumerate(value):
            check(one, schema.get("items", {}), f"{where}, entry {number}")
    lowest, highest = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if _is(value, "number") and not lowest <= value <= highest:
        raise SettingError(f"{where} is {one_line(repr(value), 60)}: out of range")


def _check_object(value: Mapping[str, Any], schema: Schema, where: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for key, one in value.items():
        if key in known:
            check(one, known[key], f"{where}, {key}")
        elif others is False:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            meant = f"do you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise SettingError(f"{where} has an unknown key {one_line(repr(key), 60)}: {meant}")
        else:
            check(one, others, f"{where}, {one_line(key, 60)}")


def _fits(value: Any, schema: Schema) -> bool:
    try:
        check(value, schema, "")
    except SettingError:
        return False
    return True


def _is(value: Any, kind: str) -> bool:
    """Whether a JSON value is of a kind. True and false are no numbers, nor are numbers that no float can hold."""
    if kind in ("integer", "number"):
        return (type(value) is int and abs(value) < 2**63) or (kind == "number" and type(value) is float)
    return isinstance(value, KINDS[kind])  # type: ignore[arg-type]
