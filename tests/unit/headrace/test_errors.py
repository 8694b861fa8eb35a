"""The tree of errors."""

from __future__ import annotations

import importlib
import pickle

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


@pytest.mark.parametrize(
    ("message", "hint", "text"),
    [
        ("no 'x'; did you mean y?", "It has y.", "no 'x'; did you mean y? It has y."),
        ("no X; did you mean Y?", "docs list them", "no X; did you mean Y? docs list them"),
        ("it is broken.", "Write it anew.", "it is broken. Write it anew."),
        ("it is broken.", "", "it is broken."),
        ("it is broken", "write it anew", "it is broken; write it anew"),
    ],
)
def test_an_error_and_its_hint_are_one_readable_text(message: str, hint: str, text: str) -> None:
    assert errors.ConfigError(message, hint=hint).message_with_hint == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Traceback:\n  File a.py\nValueError: no model\n", "ValueError: no model"),
        (
            "while parsing\n  in model-config.yaml, line 2\n    ^\n\n",
            "in model-config.yaml, line 2",
        ),
        ("SyntaxError: é\r\n~~~^^^\r\n", "SyntaxError: é"),
        ("7", "7"),
        ("\n  ^\n", ""),
        ("", ""),
    ],
)
def test_the_last_line_of_an_error_has_a_letter_or_a_digit(text: str, expected: str) -> None:
    assert errors.last_line(text) == expected


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_each_is_named_by_the_one_module_that_celery_results_name(
    kind: type[errors.HeadraceError],
) -> None:
    assert kind.__module__ == "headrace.errors"
    assert getattr(importlib.import_module(kind.__module__), kind.__name__) is kind
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


def test_a_derived_class_inherits_what_its_statement_does_not_give() -> None:
    class Mine(errors.QueueFull, code="mine"): ...

    error = Mine("no room", retry_after_s=7)
    assert (error.code, error.status, error.retryable) == ("mine", 429, True)
    assert error.title == "Mine", "the code in words"
    assert error.retry_after_s == 7
    assert errors.QueueFull.code == "queue-full"
    assert "mine" not in errors.BY_CODE


def test_each_code_is_one_class() -> None:
    coded = [kind for kind in classes() if "code" in vars(kind)]
    assert {kind.code: kind for kind in coded} == errors.BY_CODE
    assert len(coded) == len(errors.BY_CODE)
    unnamed = [kind.code for kind in coded if kind.title == errors.HeadraceError.title]
    assert unnamed == ["error"], "each problem has a title of its own"
