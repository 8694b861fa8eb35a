"""A wrong query parameter, header or member: the problem names it, and what to give instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import api
from api.routes.table import TABLE, Operation
from api.submission.decoding import parameters_of
from headrace import errors
from tests.harness.servers.api_server import ApiServer

JOBS = "/api/v1/models/echo/jobs"
#: None of them makes a job, as an option.
WRONG_VALUES = ("-1", "nan", "1e400", "x,y", "", "%00", "null", "[" + "x" * 3000)
PLACES = {
    "model": "tiny", "job_id": "a", "version": "2.1", "group": "echo.0123456789ab", "run_id": "r",
    "name": "n", "queue": "headrace.echo", "worker": "w", "key": "0123456789ab",
    "profile_id": "p", "code": "queue-full",
}  # fmt: skip


def parameters() -> Iterator[Any]:
    seen = set()
    for operation in TABLE:
        for shape in operation.query:
            for name in parameters_of(shape):
                if (operation.endpoint, name) not in seen:
                    seen.add((operation.endpoint, name))
                    yield pytest.param(operation, name, id=f"{operation.name}-{name}")


def path_of(operation: Operation) -> str:
    return operation.path.replace(":path}", "}").format(**PLACES)


@pytest.mark.parametrize(("operation", "name"), list(parameters()))
def test_each_query_parameter(api: ApiServer, operation: Operation, name: str) -> None:
    remedies = []
    for value in (*WRONG_VALUES, f"1&{name}=1"):
        with api.http.stream(
            operation.method, f"{path_of(operation)}?{name}={value}", content=b"{}"
        ) as response:
            if response.status_code != 400:
                assert response.status_code < 500
                continue
            response.read()
        remedies.append(response.json()["remedy"])
    # That of a value which is given twice is among them.
    assert "Give it once." in remedies
    assert all(remedies)


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("priority=-1", "Give a whole number from 0 to 9, or leave it out for the default."),
        ("priority=high", "Give a whole number from 0 to 9, or leave it out for the default."),
        (
            "expires=0",
            "Give a number that is above 0 and at most 2592000, or leave it out for the default.",
        ),
        ("wait=-1", "Give 0 to 60."),
        (
            "webhook_events=ended",
            "Give cancelled, expired, failed, started or succeeded, or leave it out for the "
            "default.",
        ),
        # An unset variable is no wish for no webhook.
        ("webhook=", "Ask its operator to set it (docs/webhooks.md), or wait or poll instead."),
        ("metadata=[]", "Give an object, or leave it out for the default."),
        ("metadata=x", 'Give a JSON object, percent-encoded, such as {"batch":7}.'),
        ("priority=1&priority=2", "Give it once."),
        (
            "metadata=%ff",
            "Send up to 100 names and values, percent-encoded in UTF-8: ?name=value&…",
        ),
    ],
)
def test_options_in_a_query(api: ApiServer, query: str, remedy: str) -> None:
    answer = api.http.post(f"{JOBS}?{query}", json=1)
    assert (answer.status_code, answer.json()["remedy"]) == (400, remedy)


@pytest.mark.parametrize(
    ("body", "remedy"),
    [
        ({"model": "echo", "input": 1, "options": {"priority": -1}},
         "Give a whole number from 0 to 9."),
        ({"model": "echo", "input": 1, "options": {"webhook_events": []}},
         "Give a list of at least 1 entries, each cancelled, expired, failed, started or "
         "succeeded."),
        ({"model": 1, "input": 1}, "Give a text."),
        ({"input": 1}, "Give a text as model."),
        ([], "Give an object."),
    ],
)  # fmt: skip
def test_members_of_a_body(api: ApiServer, body: object, remedy: str) -> None:
    answer = api.http.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["remedy"]) == (400, remedy)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", JOBS, {"idempotency-key": ""}, 422),
        ("POST", JOBS, {"idempotency-key": "a b"}, 422),
        ("POST", "/api/v1/jobs/bulk", {"idempotency-key": "a b"}, 422),
        ("POST", "/api/v1/jobs/bulk", {"headrace-deadline": "-1"}, 400),
        ("POST", "/api/v1/jobs/bulk", {"content-type": "text/html"}, 415),
        ("POST", JOBS, {"content-encoding": "br"}, 415),
        ("POST", "/api/v1/jobs", {"content-type": "text/html"}, 415),
        ("PATCH", "/api/v1/models/echo", {"if-match": "x"}, 400),
    ],
)
def test_each_header(
    api: ApiServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = api.http.request(method, path, headers=headers, content=b"{}")
    assert (answer.status_code, bool(answer.json().get("remedy"))) == (status, True), answer.text


def test_every_error_of_the_api_says_what_to_do() -> None:
    names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.HeadraceError)
    }
    without = [
        f"{file}:{call.lineno}"
        for file in Path(api.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in names
        and not any(keyword.arg in ("hint", None) for keyword in call.keywords)
    ]
    assert not without
