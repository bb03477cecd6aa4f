"""The form says what a conventions file says, and what is wrong with it."""

import pytest

from tramark.errors import SettingError
from tramark.suspects.conventions import Conventions
from tramark.tracing.suspected import conventions_of
from tramark.web.forms import conventions_in, fields_of, order_in


class Fed:
    """A suspect that says how it is fed."""

    def __init__(self, conventions: Conventions) -> None:
        self.conventions = conventions


def test_a_cases_conventions_fill_the_form_that_says_them_again() -> None:
    form = {
        "size": "32 × 24",
        "colour": "bgr",
        "layout": "NHWC",
        "value_range": "0, 255",
        "mean": "0.485 0.456 0.406",
        "flat": "on",
        "labels": '{"cat": 0, "dog": 1}',
        "threshold": "0.5",
    }
    order = order_in(form)
    assert order.conventions.size == (32, 24)
    assert order.conventions.mean == (0.485, 0.456, 0.406)
    recorded = conventions_of(Fed(order.conventions))  # type: ignore[arg-type]
    assert order_in(fields_of(recorded)).conventions == order.conventions
    assert conventions_in({"url": "https://example.org", "mean": " "}) == {}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"size": "large"}, "size is 'large': give numbers"),
        ({"size": "32"}, "size"),
        ({"budget": "many"}, "budget is 'many': give a number"),
        ({"colour": "mauve"}, "colour"),
        ({"labels": "{cat}"}, "labels are not JSON"),
        ({"template": '{"bodi": 1}'}, "do you mean 'body'"),
        ({"headers": "X-API-Key: secret"}, "NAME=ENVVAR"),
        ({"dtype": "complicated"}, "dtype"),
    ],
)
def test_a_wrong_field_is_named(form: dict[str, str], message: str) -> None:
    from tramark.errors import TramarkError

    with pytest.raises(TramarkError, match=message):
        order_in(form)


def test_the_error_is_one_in_a_million_unless_said_otherwise() -> None:
    assert order_in({}).options["false_accusation"] == 1e-6
    assert order_in({"false_accusation": "1e-3"}).options["false_accusation"] == 1e-3
    with pytest.raises(SettingError, match="false accusation"):
        order_in({"false_accusation": "small"})
