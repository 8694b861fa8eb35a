"""How lines of the logs look, what they never hold, and the table of their fields."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.messages import incoming_request_id
from api.observability.access_log import AccessLog
from api.observability.request_trace import RequestTrace
from headrace.observability import logs
from headrace.observability.log_format import formatter, shown_logger
from headrace.observability.redaction import SHOWN, Redaction
from headrace.server.supervisor.console import Console

ROOT = Path(__file__).resolve().parents[4]
DOCUMENT = (ROOT / "docs" / "logging.md").read_text()
NOTHING = Redaction()
FORGED = "a\nb\r\x1b[31m\u2028c\u202ed\x85"


@pytest.fixture(autouse=True)
def nothing_at_hand() -> None:
    """Other tests of this process run verbs in this very thread."""
    logs.LINE_FIELDS.set(None)
    logs.RUNNING_JOBS.set(())
    logs.TRACE.set("")


def line_of(shape: str, message: str, *, error: bool = False, **extra: Any) -> str:
    record = logging.LogRecord(
        "workers.models.served_model", logging.WARNING, "", 1, message, (), None
    )
    vars(record).update(extra)
    if error:
        try:
            json.loads(FORGED)
        except ValueError as failure:
            failure.add_note(FORGED)
            record.exc_info = sys.exc_info()
    made = formatter(shape, {"part": "worker", "pid": 7}, allowed=frozenset(logs.FIELDS))
    return made.format(record)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("workers.consumer.loop", "workers.consumer"),
        ("workers.background.webhooks.delivery", "workers.background"),
        ("headrace.queue.following.watcher", "headrace.queue"),
        ("api", "api"),
        ("runner", "runner"),
        ("celery.worker.strategy", "celery.worker.strategy"),
        ("my_models.faces.handler", "my_models.faces.handler"),
    ],
)
def test_a_logger_is_shown_as_its_room(name: str, shown: str) -> None:
    assert shown_logger(name) == shown


def test_a_line_for_people() -> None:
    line = line_of("console", "gone", model="digits", jobs=["a", "b"], reason="two words")
    stamp, rest = line[:23], line[23:]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", stamp)
    assert rest == ' WARNING workers.models: gone  model=digits jobs=a,b reason="two words"'


def test_a_line_of_json() -> None:
    told = json.loads(line_of("json", "gone", model="digits", job="a", secret="kept to itself"))
    assert list(told)[:6] == ["timestamp", "level", "logger", "event", "part", "pid"]
    del told["timestamp"]
    assert told == {
        "level": "warning", "logger": "workers.models", "event": "gone", "part":
        "worker", "pid": 7, "model": "digits", "job": "a",
    }  # fmt: skip


@pytest.mark.parametrize("shape", ["console", "json"])
def test_no_text_makes_a_line_of_its_own(shape: str) -> None:
    line = line_of(shape, FORGED, job=FORGED, jobs=[FORGED])
    assert len(line.splitlines()) == 1
    assert line.isprintable()


@pytest.mark.parametrize("shape", ["console", "json", "torchserve"])
@pytest.mark.parametrize("event", ["gone", {"x": 1}])
def test_a_line_of_structlogs_own_loggers(shape: str, event: object) -> None:
    record = logging.LogRecord("mine", logging.INFO, "", 1, {"event": event}, (), None)
    # As `ProcessorFormatter.wrap_for_formatter` leaves them, for handlers that use structlog.
    vars(record).update(_logger=logging.getLogger("mine"), _name="info")
    line = formatter(shape, {"part": "worker"}, allowed=frozenset(logs.FIELDS)).format(record)
    shown = json.loads(line)["event"] if shape == "json" else line
    assert event == shown or str(event) in shown


def test_an_error_stands_below_its_line() -> None:
    first, *below = line_of("console", "failed", error=True).splitlines()
    assert first.endswith("workers.models: failed")
    assert all(row.startswith("    ") and row.isprintable() for row in below)
    assert below[0] == "    Traceback (most recent call last):"
    told = json.loads(line_of("json", "failed", error=True))
    assert FORGED in told["exception"]


def test_a_line_says_what_its_thread_is_at() -> None:
    logs.LINE_FIELDS.set({"batch": "b-1", "request": "r"})
    logs.RUNNING_JOBS.set(["one"])
    told = json.loads(line_of("json", "x"))
    logs.LINE_FIELDS.set(None)
    logs.RUNNING_JOBS.set(())
    assert (told["batch"], told["request"], told["job"]) == ("b-1", "r", "one")
    assert "batch" not in json.loads(line_of("json", "x"))
    many = [str(n) for n in range(150)]
    assert logs.about_jobs(many) == {"jobs": many[:100]}
    assert logs.about_jobs([]) == {}


SECRET = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=40)


@given(SECRET, st.text(), st.text())
def test_what_is_known_to_be_secret_is_never_shown(secret: str, before: str, after: str) -> None:
    secret = f"s3{secret}"
    environ = {"AWS_SECRET_ACCESS_KEY": secret}
    cleaned = Redaction.of(environ, f"redis://user:{secret}@host:1/0")
    assert secret not in cleaned.clean(f"{before}{secret}{after}")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("at redis://:pass/w@rd@host:1/0 now", "at redis://:***@host:1/0 now"),
        ("rediss://user:p%40ss@[::1]:1", "rediss://user:***@[::1]:1"),
        (f"key hr_{'0a' * 6}_{'x' * 43} is none", f"key hr_{'0a' * 6}_*** is none"),
        ("at s3://b/w.pt?X-Amz-Signature=0a1b&v=2", "at s3://b/w.pt?X-Amz-Signature=***&v=2"),
        ("url: /w.pt?v=2&sig=a%2Fb%3D (403)", "url: /w.pt?v=2&sig=*** (403)"),
        ("why?token=abc#x", "why?token=***#x"),
        ("a tokenizer?tokens=5&design=6", "a tokenizer?tokens=5&design=6"),
        ("/docs?a=1&amp;client_secret=abc&amp;b=2", "/docs?a=1&amp;client_secret=***&amp;b=2"),
        ("/docs?a=1\\u0026id_token=abc\\u0026b", "/docs?a=1\\u0026id_token=***\\u0026b"),
        ("webhook whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "webhook whsec_***"),
        ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': 'Bearer ***'}"),
        ("see http://127.0.0.1:8080/docs", "see http://127.0.0.1:8080/docs"),
    ],
)
def test_what_looks_like_a_secret_is_not_shown(line: str, shown: str) -> None:
    assert NOTHING.clean(line) == shown


@pytest.mark.parametrize(
    "text", ['GET "https://h/x?token=abc" failed', 'Authorization: Bearer a"b', '/hr_&token=a"b']
)
def test_a_line_of_json_stays_json(text: str) -> None:
    line = NOTHING.clean(json.dumps({"message": text}))
    assert SHOWN in json.loads(line)["message"]


@pytest.mark.parametrize(("mark", "text"), [("://", "a" * 500), ("", "a://:" * 100)])
def test_a_clients_text_costs_no_more_than_its_length(mark: str, text: str) -> None:
    def seconds(line: str) -> float:
        began = time.thread_time()
        NOTHING.clean(line)
        return time.thread_time() - began

    short, long = (min(seconds(mark + text * n) for _ in range(5)) for n in (8, 64))
    assert long < short * 8 * 4, "a square of it would be 64 times as much"


def test_a_password_is_known_as_it_is_and_as_a_url_has_it() -> None:
    redaction = Redaction.of({"REDIS_URL": "redis://:p%40ss%22word@h/0", "HEADRACE_API_KEY": ""})
    for form in ('p@ss"word', "p%40ss%22word", 'p@ss\\"word'):
        assert redaction.clean(f"a {form} b") == "a *** b"


def test_everything_on_the_console_is_json_where_that_is_wanted() -> None:
    stream = io.StringIO()
    console = Console(stream, ["api", "redis"], colour=True, as_json=True)
    console.feed("api", b'{"event":"listening","part":"api"}\n\n{not json}\n')
    console.feed("redis", b"1:M out of memory\x1b[0m\n")
    console.print("headrace", "up\n  API")
    first, *others = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert first == {"event": "listening", "part": "api"}
    assert [(line["part"], line["event"]) for line in others] == [
        ("api", "{not json}"), ("redis", "1:M out of memory\x1b[0m"), ("headrace", "up\n  API"),
    ]  # fmt: skip


def test_auto_goes_by_the_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert logs.format_of("auto", Terminal()) == "console"
    assert logs.format_of("auto", io.StringIO()) == "json"
    assert logs.format_of("console", io.StringIO()) == "console"


def request_scope(**more: Any) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": "/x", "raw_path": b"/x", "query_string": b"a=b",
        "headers": [], "client": ("127.0.0.1", 1), **more,
    }  # fmt: skip


def access_lines(*scopes: Mapping[str, Any], as_json: bool) -> list[str]:
    out = io.BytesIO()
    log = AccessLog(out, as_json=as_json, fields={"part": "api"}, redaction=NOTHING)

    async def write() -> None:
        for scope in scopes:
            trace = RequestTrace(dict(scope), _nowhere, b"r-1")
            trace.status, trace.size = 200, 12
            trace.template, trace.job = "/api/v1/jobs/{job_id}", f"x{FORGED}"
            log.write(trace)
        await asyncio.sleep(0)

    asyncio.run(write())
    return out.getvalue().decode().splitlines()


async def _nowhere(_: Any) -> None:
    pass


@pytest.mark.parametrize("as_json", [True, False])
def test_a_request_is_one_line(as_json: bool) -> None:
    [line] = access_lines(request_scope(), as_json=as_json)
    assert "a=b" not in line
    assert line.isprintable()


def test_the_access_log_for_people() -> None:
    scope = request_scope(raw_path=b"/a%0Ab\xff" + b"x" * 2000)
    [line] = access_lines(scope, as_json=False)
    assert re.search(r" INFO    access: GET /a%0Ab\\xffx+ 200 \d+\.\d ms 12 B  request=r-1 ", line)
    assert len(line) < 1000


def test_probes_are_not_logged() -> None:
    paths = ("/live", "/ready", "/metrics", "/y")
    lines = access_lines(*(request_scope(path=path) for path in paths), as_json=True)
    assert len(lines) == 1


@pytest.mark.parametrize("value", [b"", b"a b", b"a\tb", b"x" * 129, b"\xff", b'a"b'])
def test_an_id_that_is_none_is_passed_over(value: bytes) -> None:
    assert incoming_request_id(request_scope(headers=[(b"x-request-id", value)])) == b""
    assert incoming_request_id(request_scope(headers=[(b"x-request-id", b"0af7/1:2@b+c=-")])) != b""


def test_the_document_has_every_field() -> None:
    section = DOCUMENT.partition("## Fields")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE)
    assert dict(rows) == dict(logs.FIELDS)


def test_every_field_that_is_logged_is_one_of_the_table() -> None:
    used: set[str] = set()
    for folder in ("api", "workers", "headrace", "handlers", "extensions"):
        for path in (ROOT / folder).rglob("*.py"):
            for extra in re.findall(r"extra=\{([^}]*)\}", path.read_text()):
                used |= set(re.findall(r'"(\w+)":', extra))
    assert {"model", "job", "api_batch", "error_id"} <= used <= logs.FIELDS.keys()


def test_no_line_names_in_its_text_what_has_a_field() -> None:
    named = re.compile(r'logger\.\w+\(\s*"[^"]*\b(job|model|batch|request) %s')
    found = [
        f"{path.name}: {match[0]}"
        for folder in ("api", "workers", "headrace", "handlers", "extensions")
        for path in (ROOT / folder).rglob("*.py")
        for match in named.finditer(path.read_text())
    ]
    assert found == []
