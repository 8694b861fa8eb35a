"""What OpenAPI cannot say of the API, for schemathesis; loaded by it as hooks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import schemathesis

from api.openapi.schemas import parameter_schemas
from headrace.jobs.ids import KEY
from headrace.jobs.options import WEBHOOK_URL, JobOptions

_KEY = "Idempotency-Key"
_NO_JSON = ("text/plain", "image/png", "application/octet-stream")
#: Members of a report of a run, and of a request for a profile.
_COUNTS = ("total", "succeeded", "failed", "in_flight", "batches")
_INTEGERS = [
    name for name, schema in parameter_schemas(JobOptions).items() if schema["type"] == "integer"
]


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """A body of lines, most of which are no JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """Leave out JSON in place of a text or an image: in a body it is text like any other.

    Also forms without the part of their description: several parts of any names are one input.
    """
    form = case.media_type == "multipart/form-data" and case.operation.path.endswith("/jobs")
    if form and not (isinstance(case.body, dict) and "data" in case.body):
        return False
    return case.media_type not in _NO_JSON or not isinstance(case.body, (int, float, list, dict))


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Make a request of what is one only by the schema's letter."""
    # A part of a JSON text has its content type and is no JSON: test_api_payloads.py has ranges.
    if case.headers:
        case.headers.pop("Range", None)
    _make_sendable(case.query)
    if case.operation.path.endswith("/stream") and (case.query or {}).get("format") == "text":
        # Before the end of its job this stream is cut on purpose, which looks like a lost network.
        case.query["format"] = "ndjson"
    body = case.body
    if not isinstance(body, dict):
        return
    key = (case.headers or {}).get(_KEY)
    if isinstance(body.get("id"), str) and key and re.search(KEY, str(key)):
        # A request has an id or a key, not both: a header and a member of the body.
        del case.headers[_KEY]
    if isinstance(body.get("parameters"), dict):
        # Only those that a model declares, and these declare none.
        body["parameters"] = {}
    _make_whole(body.get("options"), _INTEGERS)
    _make_sendable(body.get("options"))
    _make_whole(body, _COUNTS)


def _make_sendable(options: Any) -> None:
    """Which address a webhook may have is more than a pattern; and events are of a webhook."""
    if not isinstance(options, dict):
        return
    url, events = options.get("webhook"), options.get("webhook_events")
    sendable = isinstance(url, str) and re.search(WEBHOOK_URL, url)
    if sendable or (url is None and events is not None):
        options["webhook"] = "https://example.com/hook"


def _make_whole(members: Any, names: Sequence[str]) -> None:
    """To JSON Schema 7.0 is an integer; the API takes 7 alone."""
    for name in names if isinstance(members, dict) else ():
        value = members.get(name)
        if isinstance(value, float) and value.is_integer():
            members[name] = int(value)
