"""The tree of errors: its classes belong to one module, whatever file each is in."""

from __future__ import annotations

import importlib
import pickle
import re

import pytest
from celery import Celery
from celery.backends.base import Backend

from headrace import errors


def classes() -> list[type[errors.HeadraceError]]:
    """All that the package defines."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.HeadraceError)
    ]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_each_is_named_by_the_one_module_that_celery_results_name(
    kind: type[errors.HeadraceError],
) -> None:
    assert kind.__module__ == "headrace.errors"
    assert getattr(importlib.import_module(kind.__module__), kind.__name__) is kind
    assert kind.__name__ in errors.__all__
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_a_celery_client_raises_the_class_that_a_result_names() -> None:
    with Celery("client", broker="memory://", backend="cache+memory://") as app:
        backend: Backend = app.backend
        fields = {"exc_type": "InputError", "exc_message": ["bad"], "exc_module": "headrace.errors"}
        raised = backend.exception_to_python(fields)
    assert type(raised) is errors.InputError
    assert str(raised) == "bad"


def test_a_derived_class_keeps_its_own_module() -> None:
    class Mine(errors.InputError): ...

    assert Mine.__module__ == __name__


def test_the_drawn_tree_has_each_of_them_with_its_code() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+)(.*)", errors.__doc__ or ""))
    by_name = {kind.__name__: kind for kind in classes() if kind is not errors.HeadraceError}
    assert drawn.keys() == by_name.keys()
    for name, kind in by_name.items():
        if "code" in vars(kind):
            assert drawn[name].split()[0] == kind.code


def test_each_code_is_one_class() -> None:
    coded = [kind for kind in classes() if "code" in vars(kind)]
    assert {kind.code: kind for kind in coded} == errors.BY_CODE
    assert len(coded) == len(errors.BY_CODE)
    unnamed = [kind.code for kind in coded if kind.title == errors.HeadraceError.title]
    assert unnamed == ["error"], "each problem has a title of its own"
