import inspect
import re

import pytest

from pdd.core import errors
from pdd.core.errors import InvalidRequest, PddError, Unavailable


def _drawn_tree() -> dict[str, str]:
    """Each class of the docstring's drawing and its parent there."""
    parents, path = {}, []
    for line in errors.__doc__.splitlines():
        drawn = re.match(r"^    ((?:[│ ]   )*)(?:[├└]── )?([A-Z]\w+)", line)
        if drawn is None:
            continue
        depth = 0 if "──" not in line else len(drawn.group(1)) // 4 + 1
        path = [*path[:depth], drawn.group(2)]
        parents[drawn.group(2)] = path[-2] if depth else "Exception"
    return parents


def test_the_drawing_is_the_tree():
    classes = inspect.getmembers(errors, lambda c: inspect.isclass(c) and issubclass(c, Exception))
    assert _drawn_tree() == {name: cls.__base__.__name__ for name, cls in classes}


def test_everything_on_purpose_has_one_root_and_says_what_it_is():
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        assert issubclass(cls, PddError)
        assert cls.__doc__


def test_only_what_may_succeed_later_is_retryable():
    classes = inspect.getmembers(errors, inspect.isclass)
    retryable = {name for name, cls in classes if cls.retryable}
    assert retryable == {"Unavailable", "CapacityExhausted", "TenantOverLimit", "WorkerFailed", "NodeFailed"}


def test_a_refused_request_names_its_field_and_has_a_stable_code():
    error = InvalidRequest("too hot", param="temperature")
    assert (str(error), error.message, error.param, error.code) == (
        "too hot",
        "too hot",
        "temperature",
        "invalid_value",
    )
    assert InvalidRequest("no", code="model_not_found").param is None


def test_unavailability_says_when_to_come_back():
    error = Unavailable("nobody is up", retry_after_s=2.5)
    assert (str(error), error.message, error.retry_after_s) == ("nobody is up", "nobody is up", 2.5)
    with pytest.raises(TypeError):
        Unavailable("nobody is up")
