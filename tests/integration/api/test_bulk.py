"""Bulk submit: a line in, a line out, in order, whatever becomes of its neighbours."""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from api.http.send_buffer import Room
from api.routes.jobs import bulk_submit
from headrace.errors import HeadraceError
from headrace.jobs.ids import id_of_key
from tests.harness.fakes.proxy import proxy
from tests.harness.fakes.worker import FakeWorker, claim, echo, settle
from tests.harness.http.bulk import BULK, BulkSocket, ndjson
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.integration.conftest import BODY_LIMIT_BYTES

NDJSON = {"Content-Type": "application/x-ndjson"}
DEEP = {"max_queue_depth": 1_000_000}


def bulk(
    at: ApiServer, *lines: Any, headers: dict[str, str] | None = None, query: str = ""
) -> list[Any]:
    """The answers to a whole request."""
    response = at.http.post(f"{BULK}{query}", content=ndjson(lines), headers=headers or NDJSON)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def job(value: Any, model: str = "echo", **members: Any) -> dict[str, Any]:
    return {"model": model, "input": value, **members}


def what(answers: list[Any]) -> list[str]:
    """Of each answer its status, or the code of its problem."""
    return [
        answer["status"] if "id" in answer else answer["error"]["type"].rpartition("/")[2]
        for answer in answers
    ]


def inputs(server: RedisServer, model: str = "echo") -> list[Any]:
    """Claim and end all that waits; the inputs in the order in which they were taken."""
    found = []
    with server.client() as client:
        while claimed := claim(client, model, 1000):
            settle(client, model, claimed, [echo(message) for message, _ in claimed])
            found += [json.loads(message.input) for message, _ in claimed]
    return found


def test_a_line_is_answered_as_a_submit_is(api: ApiServer, redis_db: RedisServer) -> None:
    answers = bulk(
        api,
        job({"x": [1, {}]}),
        job(2, "tiny", version="2.1", id="mine", options={"metadata": {"a": 1}}),
        job(3, options={"countdown": 60, "priority": 6}),
    )
    assert what(answers) == ["queued", "queued", "scheduled"]
    assert [answer["model"] for answer in answers] == ["echo", "tiny", "echo"]
    for answer in answers:
        stored = api.http.get(answer["urls"]["self"]).json()
        assert (stored.pop("due_at", None) is not None) == (answer["status"] == "scheduled")
        assert {**stored, "queue_position": None} == answer
        api.http.delete(answer["urls"]["self"])
    assert answers[1]["id"] == "mine"
    metrics = api.http.get("/metrics").text
    assert 'headrace_jobs_admitted_total{model="echo"} 2.0' in metrics
    assert inputs(redis_db) + inputs(redis_db, "tiny") + inputs(redis_db, "tiny@2.1") == []


def test_refused_lines_leave_nothing_behind(api: ApiServer) -> None:
    """Not even until the garbage collector comes: an error's traceback holds whole requests."""

    def errors() -> int:
        return sum(issubclass(type(one), HeadraceError) for one in gc.get_objects())

    gc.collect()
    before = errors()
    gc.disable()
    try:
        lines = [job(1, "none"), job(1, options={"priority": 10}), {"model": "echo"}, "x", 1]
        answers = bulk(api, *(lines * 200))
        assert len(what(answers)) == 1000
        wait_until(lambda: errors() <= before, "all errors are gone")
    finally:
        gc.enable()


def test_a_line_may_be_part_of_a_trace_of_its_own(api: ApiServer, redis_db: RedisServer) -> None:
    whole, own = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    answers = bulk(
        api,
        job(0),
        job(1, traceparent=own),
        job(2, traceparent="none at all"),
        job(3, traceparent=7),
        headers={**NDJSON, "traceparent": whole, "tracestate": "a=b"},
    )
    assert what(answers) == [*["queued"] * 3, "invalid-request"]
    ids = [trace[3:35] for trace in (whole, own, whole)]
    assert [answer["trace_id"] for answer in answers[:3]] == ids
    jobs = [api.http.get(answer["urls"]["self"]).json() for answer in answers[:3]]
    assert [one["trace_id"] for one in jobs] == ids
    with redis_db.client() as client:
        claimed = claim(client, "echo", 10)
        settle(client, "echo", claimed, [echo(message) for message, _ in claimed])
    traces = [(json.loads(message.input), message.trace) for message, _ in claimed]
    assert traces == [(0, (whole, "a=b")), (1, (own, "")), (2, (whole, "a=b"))]
    alone = api.http.post("/api/v1/jobs", json=job(0, traceparent=own))
    assert alone.status_code == 400


def test_a_bad_line_is_an_error_for_itself_alone(api: ApiServer, redis_db: RedisServer) -> None:
    bad: list[tuple[Any, str]] = [
        (b"{", "invalid-request"),
        (b"[1]", "invalid-request"),
        (b'{"model":"echo"}', "invalid-request"),
        (b'{"model":"echo","input":NaN}', "invalid-request"),
        (b'{"model":"echo","input":"\xff"}', "invalid-request"),
        (job(1, options={"priorty": 1}), "invalid-request"),
        (job(1, inptu=1), "invalid-request"),
        (job(1, "ecko"), "model-not-found"),
        (job(1, version="7"), "model-not-found"),
        (job(1, id="a b"), "invalid-id"),
        (job("x" * BODY_LIMIT_BYTES), "payload-too-large"),
    ]
    lines = [line for n, (text, _) in enumerate(bad) for line in (job(n), text)]
    body = b"\r\n \n" + ndjson(lines) + b"\n" + json.dumps(job("last")).encode()
    response = api.http.post(BULK, content=body, headers=NDJSON)
    answers = [json.loads(line) for line in response.text.splitlines()]
    expected = [code for _, wrong in bad for code in ("queued", wrong)]
    assert what(answers) == [*expected, "queued"]
    # Empty lines have no answer, but they count.
    numbers = [answer["error"]["line"] for answer in answers if "error" in answer]
    assert numbers == [4 + 2 * n for n in range(len(bad))]
    for answer in answers:
        if "error" in answer:
            assert answer["error"]["detail"]
            assert answer["error"]["instance"] == BULK
    assert "did you mean priority?" in answers[11]["error"]["detail"]
    assert inputs(redis_db) == [*range(len(bad)), "last"]


@pytest.mark.parametrize(
    "kind", ["application/x-ndjson; charset=utf-8", "application/jsonl", "application/ndjson",
             "application/x-www-form-urlencoded", None],
)  # fmt: skip
def test_types_that_are_read(api: ApiServer, redis_db: RedisServer, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    response = api.http.post(BULK, content=ndjson([job(1)]), headers=headers)
    assert what([response.json()]) == ["queued"]
    assert inputs(redis_db) == [1]


def test_what_is_wrong_with_the_request_is_a_problem(api: ApiServer) -> None:
    def code(**options: Any) -> tuple[int, str]:
        url = BULK + options.pop("query", "")
        response = api.http.post(url, **{"content": b"{}\n", "headers": NDJSON, **options})
        return response.status_code, response.json()["type"]

    assert code(headers={"Content-Type": "text/csv"}) == (415, "/problems/unsupported-media")
    gzip = {**NDJSON, "Content-Encoding": "gzip"}
    assert code(headers=gzip) == (415, "/problems/unsupported-media")
    key = [(b"content-type", b"application/x-ndjson"), (b"idempotency-key", b"a b")]
    assert code(headers=key) == (422, "/problems/invalid-id")
    assert code(query="?wait=1") == (400, "/problems/invalid-request")


def test_nothing_in_is_nothing_out(api: ApiServer) -> None:
    for body in (b"", b"\n", b" \r\n\n"):
        response = api.http.post(BULK, content=body, headers=NDJSON)
        assert (response.status_code, response.content) == (200, b"")


def test_answers_come_while_the_body_is_sent(api: ApiServer, redis_db: RedisServer) -> None:
    with BulkSocket(api.port) as talk:
        for n in range(3):
            talk.send(ndjson([job(n)]))
            assert talk.line()["status"] == "queued"
        talk.send(b'{"model":"echo",')
        talk.send(b'"input":3}')
        talk.finish()
        assert what([talk.line()]) == ["queued"]
        assert talk.rest() == []
        assert talk.whole
    assert inputs(redis_db) == [0, 1, 2, 3]


def test_a_client_may_send_all_before_it_reads(redis_db: RedisServer) -> None:
    count, size = 7000, 4000
    options = {"metadata": {"x": "y" * size}}
    with api_server(redis_db.url, catalog(echo=DEEP)) as api, BulkSocket(api.port) as talk:
        # Their answers are longer than what sockets and memory hold: the rest waits in a file.
        for at in range(0, count, 100):
            talk.send(ndjson([job(n, options=options, id=f"j{n}") for n in range(at, at + 100)]))
        talk.finish()
        answers = talk.rest()
        assert talk.whole
    assert [answer["id"] for answer in answers] == [f"j{n}" for n in range(count)]
    assert all(answer["metadata"] == options["metadata"] for answer in answers)
    assert inputs(redis_db) == list(range(count))


def test_many_lines_keep_their_order(redis_db: RedisServer) -> None:
    count = 2000
    with api_server(redis_db.url, catalog(echo=DEEP, other=DEEP)) as api:
        lines = [job(n, ("echo", "other")[n % 2], id=f"job-{n}") for n in range(count)]
        answers = bulk(api, *lines)
    assert [answer["id"] for answer in answers] == [f"job-{n}" for n in range(count)]
    assert inputs(redis_db) == list(range(0, count, 2))
    assert inputs(redis_db, "other") == list(range(1, count, 2))


def test_a_client_that_expects_100_continue(api: ApiServer, redis_db: RedisServer) -> None:
    with BulkSocket(api.port, "Expect: 100-continue\r\n") as talk:
        assert talk._socket.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        talk.send(ndjson([job(1)]))
        talk.finish()
        assert what(talk.rest()) == ["queued"]
    assert inputs(redis_db) == [1]


def test_a_full_queue_holds_the_client_back_until_there_is_room(
    api: ApiServer, redis_db: RedisServer
) -> None:
    lines = [job(n, "tiny") for n in range(350)] + [job("other")]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bulk, api, *lines)
        with redis_db.client() as client:
            wait_until(lambda: client.llen("headrace.tiny") == 100, "the queue is full")
            assert not asked.done()
        with FakeWorker(redis_db.url, "tiny") as worker:
            assert what(asked.result(60)) == ["queued"] * 351
            wait_until(lambda: len(worker.served) == 350, "each ran once")
    assert inputs(redis_db) == ["other"]


def test_what_finds_no_room_in_time_is_refused(redis_db: RedisServer) -> None:
    models = catalog(echo=DEEP, tiny={"max_queue_depth": 10})
    with api_server(redis_db.url, models, bulk_hold_s=0.1) as api:
        lines = [job(n, model) for n in range(30) for model in ("tiny", "echo")]
        answers = bulk(api, *lines)
        assert what(answers[1::2]) == ["queued"] * 30
        assert what(answers[0::2]) == ["queued"] * 10 + ["queue-full"] * 20
        problem = answers[20]["error"]
        assert (problem["status"], problem["line"]) == (429, 21)
        # What a repeat finds is no new job, so that it needs no room.
        known = answers[0]["id"]
        metrics = api.http.get("/metrics").text
        refused = 'headrace_jobs_rejected_total{model="tiny",reason="queue-full"} 20.0'
        assert refused in metrics
        assert api.http.get(f"/api/v1/jobs/{known}").json()["status"] == "queued"
    assert inputs(redis_db, "tiny") == list(range(10))
    assert inputs(redis_db) == list(range(30))


def test_a_client_may_ask_not_to_be_held_back(redis_db: RedisServer) -> None:
    models = catalog(tiny={"max_queue_depth": 100})
    # Else the request would time out at the client.
    with api_server(redis_db.url, models, bulk_hold_s=600.0) as api:
        refuses_at_once(api)
    assert inputs(redis_db, "tiny") == list(range(100))


def refuses_at_once(api: ApiServer) -> None:
    answers = bulk(api, *(job(n, "tiny") for n in range(110)), query="?hold=0")
    assert what(answers) == ["queued"] * 100 + ["queue-full"] * 10
    for wrong in ("?hold=soon", "?hold=-1", "?hold=inf", "?hald=1"):
        refused = api.http.post(f"{BULK}{wrong}", content=b"", headers=NDJSON)
        assert (refused.status_code, refused.json()["type"]) == (400, "/problems/invalid-request")
        assert "hold" in refused.text


def test_a_key_makes_every_line_repeatable(api: ApiServer, redis_db: RedisServer) -> None:
    keyed = {**NDJSON, "Idempotency-Key": "batch-7"}
    lines = [job(0, "tiny"), job(1, "tiny", id="own"), job(2, "tiny")]
    first = bulk(api, *lines, headers=keyed)
    names = [id_of_key("batch-7/1"), "own", id_of_key("batch-7/3")]
    assert [answer["id"] for answer in first] == names
    fill = bulk(api, *(job(n, "tiny") for n in range(97)))
    assert what(fill) == ["queued"] * 97
    again = bulk(api, *lines, headers=keyed)
    assert [(answer["id"], answer["replayed"]) for answer in again] == [
        (name, True) for name in names
    ]
    assert not any("replayed" in answer for answer in [*first, *fill])
    assert [answer["queue_position"] for answer in again] == [1, 2, 3]
    assert len(inputs(redis_db, "tiny")) == 100
    ended = bulk(api, *lines[:2], job("changed", "tiny"), headers=keyed)
    assert what(ended) == ["succeeded", "succeeded", "conflict"]
    assert [answer["result"] for answer in ended[:2]] == [0, 1]
    assert ended[2]["error"]["line"] == 3
    twice = bulk(api, job(5, id="twin"), job(5, id="twin"), job(6, id="twin"))
    assert what(twice) == ["queued", "queued", "conflict"]
    assert ["replayed" in answer for answer in twice] == [False, True, False]
    assert inputs(redis_db) == [5]


def test_the_longest_key_makes_every_line_repeatable_too(
    api: ApiServer, redis_db: RedisServer
) -> None:
    lines = [job(n) for n in range(12)]
    longest = {**NDJSON, "Idempotency-Key": "k" * 255}
    first, again = (bulk(api, *lines, headers=longest) for _ in range(2))
    assert [answer["id"] for answer in first] == [answer["id"] for answer in again]
    assert first[11]["id"] == id_of_key("k" * 255 + "/12")
    assert inputs(redis_db) == list(range(12))
    longer = {**NDJSON, "Idempotency-Key": "k" * 256}
    assert api.http.post(BULK, content=ndjson(lines), headers=longer).status_code == 422


def test_whole_lines_count_when_the_client_hangs_up(api: ApiServer, redis_db: RedisServer) -> None:
    with BulkSocket(api.port) as talk:
        talk.send(ndjson([job(n) for n in range(10)]) + b'{"model":"echo","input":"half"}')
        assert what([talk.line() for _ in range(10)]) == ["queued"] * 10
    state = api.server.server_state
    wait_until(lambda: not state.tasks, "the request has ended")
    assert inputs(redis_db) == list(range(10))


@pytest.mark.parametrize("full", [False, True])
def test_a_client_that_reads_no_answers_is_cut_off(
    redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """However slowly it sends: what it has sent are jobs, and nothing is held for it any longer."""
    monkeypatch.setattr(bulk_submit, "FULL_MAX_S" if full else "UNREAD_MAX_S", 0.5)
    room = Room(1 if full else 10**9)
    with api_server(redis_db.url, catalog(echo={})) as api, BulkSocket(api.port, wait_s=2) as talk:
        monkeypatch.setattr(api.services.send_buffers, "_files", room)
        monkeypatch.setattr(api.services.send_buffers, "_memory", Room(1))
        # Until the server reads no more.
        with contextlib.suppress(OSError):
            while True:
                talk.send(b"x\n" * 1000)
        wait_until(lambda: not api.server.server_state.tasks, "the request has ended")
        wait_until(lambda: not room.used_bytes, "nothing is held")


def test_while_redis_is_away_lines_are_held_back() -> None:
    with redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as server:
        with api_server(server.url, catalog(echo=DEEP)) as api, BulkSocket(api.port) as talk:
            talk.send(ndjson([job(0)]))
            assert what([talk.line()]) == ["queued"]
            server.stop()
            talk.send(ndjson([job(1), job(2, id="named")]))
            talk.finish()
            wait_until(lambda: api.http.get("/ready").status_code == 503, "Redis is missed")
            server.start()
            assert what(talk.rest()) == ["queued", "queued"]
        assert inputs(server) == [0, 1, 2]


def test_without_redis_each_line_has_the_error() -> None:
    with (
        redis_server("valkey9") as server,
        api_server(server.url, catalog(echo=DEEP), bulk_hold_s=0.1) as api,
    ):
        server.stop()
        answers = bulk(api, job(0, id="mine"), b"{", job(1))
        assert what(answers) == ["broker-unavailable", "invalid-request", "broker-unavailable"]
        # Under which id it may have been taken, for all that is known.
        assert answers[0]["error"]["job"] == "mine"
        assert str(server.port) not in json.dumps(answers)


def test_an_answer_of_redis_that_is_lost_repeats_nothing(redis_db: RedisServer) -> None:
    with (
        proxy(redis_db.port) as between,
        api_server(f"redis://127.0.0.1:{between.port}/0", catalog(echo=DEEP)) as api,
    ):
        assert what(bulk(api, job("warm"))) == ["queued"]
        between.lose_answer_to(b"only-once", times=3)
        answers = bulk(api, *(job([n, "only-once"]) for n in range(20)))
        assert between.lost == 3
        assert what(answers) == ["queued"] * 20
    assert inputs(redis_db) == ["warm", *([n, "only-once"] for n in range(20))]


def test_a_stop_cuts_the_answer_so_that_it_is_not_taken_for_whole(redis_db: RedisServer) -> None:
    with api_server(redis_db.url, catalog(echo=DEEP)) as api, BulkSocket(api.port) as talk:
        talk.send(ndjson([job(n) for n in range(5)]))
        assert what([talk.line() for _ in range(5)]) == ["queued"] * 5
        api.server.should_exit = True
        assert talk.rest() == []
        assert not talk.whole
    assert inputs(redis_db) == list(range(5))


def test_several_at_once(redis_db: RedisServer) -> None:
    with api_server(redis_db.url, catalog(echo=DEEP)) as api, ThreadPoolExecutor(4) as pool:
        bodies = [[job([who, n]) for n in range(500)] for who in range(4)]
        asked = [pool.submit(bulk, api, *lines) for lines in bodies]
        for request in asked:
            assert what(request.result(60)) == ["queued"] * 500
    taken = inputs(redis_db)
    assert Counter(who for who, _ in taken) == dict.fromkeys(range(4), 500)
    for who in range(4):
        assert [n for by, n in taken if by == who] == list(range(500))


def test_no_id_is_reserved(api: ApiServer, redis_db: RedisServer) -> None:
    for name in ("bulk", "status", "cancel"):
        path = f"/api/v1/jobs/{name}"
        assert api.http.put(path, json=job(name)).json()["id"] == name
        assert api.http.get(path).json()["status"] == "queued"
    assert isinstance(api.http.delete(BULK), httpx2.Response)
    assert inputs(redis_db) == ["status", "cancel"]
    assert api.http.get(f"{BULK}/result").status_code == 410
