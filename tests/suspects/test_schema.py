"""What the JSON files of conventions and templates may say, and what is said of those that do not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tramark.errors import SettingError, TramarkError
from tramark.suspects.conventions import Conventions
from tramark.suspects.json_api import JsonTemplate
from tramark.suspects.schema import CONVENTIONS, TEMPLATE, conventions_from, template_from

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"

GOOD_CONVENTIONS: list[dict[str, Any]] = [
    {},
    {"labels": {"T-shirt": 0, "Trouser": 1}},
    {"labels": [1, 2, 3]},
    {"size": [224, 224], "crop": [200, 200], "resample": "bicubic", "colour": "rgb", "mean": [0.5], "std": [0.5]},
    {"layout": "NHWC", "flat": True, "value_range": [0, 255], "dtype": "uint8", "threshold": 0.5},
]
BAD_CONVENTIONS: list[tuple[Any, str]] = [
    ([], "object is wanted"),
    ({"lables": {}}, "unknown key 'lables': do you mean 'labels'"),
    ({"normalise": [0.5]}, "unknown key 'normalise'"),
    ({"prepare": "x"}, "unknown key 'prepare'"),
    ({"size": [224]}, "size has 1 entries"),
    ({"size": [0, 3]}, "size, entry 0 is 0: out of range"),
    ({"size": [1e9, 3]}, "integer is wanted"),
    ({"size": "big"}, "size is 'big': array is wanted"),
    ({"colour": "red"}, "colour is 'red': say grey, rgb, bgr"),
    ({"value_range": [1, 0]}, "value_range"),
    ({"value_range": [0, True]}, "number is wanted"),
    ({"mean": [10**400]}, "number is wanted"),
    ({"mean": ["a"]}, "mean, entry 0 is 'a'"),
    ({"std": [0]}, "std must not be zero"),
    ({"labels": {"a": "b"}}, "labels"),
    ({"labels": 7}, "labels"),
    ({"dtype": 7}, "dtype is 7: string is wanted"),
    ({"flat": 1}, "boolean is wanted"),
]
GOOD_TEMPLATES: list[dict[str, Any]] = [
    {"body": "{list}", "label": ""},
    {"send": "png", "scores": "a.b"},
    {"send": "form", "body": {"image": "{png}"}, "label": "a"},
    {"upload": "file", "label": "a", "headers": {"X-Api-Key": "${KEY}"}, "method": "PUT"},
    {"body": {"data": ["{list}"]}, "label": "0", "then": "{event_id}", "ready": {"status": "done"}},
]
BAD_TEMPLATES: list[tuple[Any, str]] = [
    (3, "object is wanted"),
    ({"body": "{list}", "lable": "a"}, "unknown key 'lable': do you mean 'label'"),
    ({"body": "{list}", "label": 7}, "label is 7"),
    ({"body": "{list}", "label": "a", "headers": {"X": 7}}, "headers, X is 7"),
    ({"body": "{list}", "label": "a", "method": "DELETE"}, "method is 'DELETE'"),
    ({"body": "{list}", "label": "a", "send": "xml"}, "send is 'xml'"),
    ({"body": "{list}", "label": "a", "send": "form"}, "a form is an object"),
    ({"body": "{list}", "label": "a", "send": "png"}, "leave body out"),
    ({"body": "{list}", "label": "a", "ready": {"a": "b"}}, "say where it is fetched"),
    ({"body": "{list}"}, "say where the answer is"),
]


@pytest.mark.parametrize("value", GOOD_CONVENTIONS)
def test_conventions_that_fit(value: Any) -> None:
    assert conventions_from(value, "c.json") == Conventions(**value)


@pytest.mark.parametrize("value", GOOD_TEMPLATES)
def test_templates_that_fit(value: Any) -> None:
    assert template_from(value, "t.json") == JsonTemplate(**value)


@pytest.mark.parametrize(("value", "says"), BAD_CONVENTIONS)
def test_conventions_that_do_not(value: Any, says: str) -> None:
    with pytest.raises(TramarkError, match=says):
        conventions_from(value, "c.json")


@pytest.mark.parametrize(("value", "says"), BAD_TEMPLATES)
def test_templates_that_do_not(value: Any, says: str) -> None:
    with pytest.raises(TramarkError, match=says):
        template_from(value, "t.json")


def test_the_documented_schemas_are_these() -> None:
    for name, schema in (("conventions", CONVENTIONS), ("template", TEMPLATE)):
        assert json.loads((SCHEMAS / f"{name}.schema.json").read_text()) == schema


def test_other_tools_read_them_alike() -> None:
    jsonschema: Any = pytest.importorskip("jsonschema")
    for value in GOOD_CONVENTIONS:
        jsonschema.validate(value, CONVENTIONS)
    for value in GOOD_TEMPLATES:
        jsonschema.validate(value, TEMPLATE)
    for read, schema, cases in (
        (conventions_from, CONVENTIONS, BAD_CONVENTIONS),
        (template_from, TEMPLATE, BAD_TEMPLATES),
    ):
        for value, _ in cases:
            if not jsonschema.Draft202012Validator(schema).is_valid(value):
                with pytest.raises(SettingError):
                    read(value, "x")
