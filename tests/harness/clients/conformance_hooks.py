"""What OpenAPI cannot say of the API, for schemathesis; loaded by it as hooks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import schemathesis

from api.openapi.job_schemas import IDEMPOTENCY_KEY, OPTIONS, WEBHOOK_URL

_KEY = "Idempotency-Key"
_RUN_COUNTS = ("total", "succeeded", "failed", "in_flight")
_INTEGERS = [name for name, schema in OPTIONS.items() if schema["type"] == "integer"]


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """A body of lines, most of which are no JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Make a request of what is one only by the schema's letter."""
    # A part of a JSON text has its content type and is no JSON: test_api_payloads.py has ranges.
    if case.headers:
        case.headers.pop("Range", None)
    _make_sendable(case.query)
    body = case.body
    if not isinstance(body, dict):
        return
    key = (case.headers or {}).get(_KEY)
    if isinstance(body.get("id"), str) and key and re.search(IDEMPOTENCY_KEY, str(key)):
        # A request has an id or a key, not both: a header and a member of the body.
        del case.headers[_KEY]
    _make_whole(body.get("options"), _INTEGERS)
    _make_sendable(body.get("options"))
    _make_whole(body, _RUN_COUNTS)


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
