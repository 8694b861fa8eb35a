"""The stream of a job's pieces: real API processes, worker and Redis."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace import AsyncClient, errors
from headrace import Client as HttpClient
from headrace.redis import keys
from tests.harness.clients.commands import Commands, CommandsWithin
from tests.harness.deployments import site as sites
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.http.events import Reader, reading
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_processes import api_processes
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

HANDLER = f"{HANDLERS / 'generation/yielding.py'}"
WORDS = ["one ", "two ", "three"]


def model(kind: str = "Yielding", **more: Any) -> dict[str, Any]:
    return {"handler": f"{HANDLER}:{kind}", "max_batch_size": 4, **more}


@dataclass
class Site(sites.Site):
    """A site with a second API."""

    other: ApiServer

    def url(self, job_id: str, api: ApiServer | None = None) -> str:
        return f"{(api or self.api).url}/api/v1/jobs/{job_id}/stream"

    def lines(self, job_id: str) -> list[Any]:
        """The stream as JSON lines, up to the end of the job."""
        text = httpx2.get(f"{self.url(job_id)}?format=ndjson", timeout=60, verify=PLAIN).text
        return [json.loads(line) for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def shared(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("stream")
    models = {
        "m": model(),
        "returning": model("Returning"),
        "filling": model("Filling"),
        "plain": {"handler": "echo"},
    }
    with (
        shared_deployment.site(folder, models) as found,
        sites.another_api(found) as other,
    ):
        yield Site(**vars(found), other=other)


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The site; streams that were read must be closed after each test."""
    yield shared
    found = [api.services.stream_limit for api in (shared.api, shared.other)]
    wait_until(lambda: not any(one.open_streams for one in found), "no stream is open")
    channels = keys.piece_channel("[^/]*")
    wait_until(lambda: not shared.client.redis.pubsub_channels(channels), "nobody subscribes")


def pieces_of(*readers: Reader) -> list[Any]:
    """The pieces that readers were sent one after the other; a restart drops those before."""
    found: list[Any] = []
    for reader in readers:
        for event in reader.events:
            if event.name == "pieces":
                found += event.data
            elif event.name == "restarted":
                found = []
    return found


def test_pieces_come_while_the_handler_runs(site: Site, tmp_path: Path) -> None:
    job_id = site.submit({"pieces": WORDS, "until": str(tmp_path)})
    with reading(site.url(job_id)) as reader:
        for n in range(3):
            assert pieces_of(reader) == WORDS[:n]
            (tmp_path / str(n)).touch()
            assert reader.wait_for("pieces", n + 1).index == n + 1
        ended = reader.wait_for("ended")
        assert (ended.index, ended.data["status"]) == (3, "succeeded")
        assert ended.id.endswith("-ended")
        assert ended.data["result"] == "one two three"
        assert reader.headers["content-type"] == "text/event-stream"
    with reading(site.url(job_id), last_id=ended.id) as again:
        assert again.status == 204


def test_a_client_goes_on_at_another_process(site: Site, tmp_path: Path) -> None:
    job_id = site.submit({"pieces": WORDS, "until": str(tmp_path)})
    (tmp_path / "0").touch()
    with reading(site.url(job_id)) as first:
        first.wait_for("pieces")
    with reading(site.url(job_id, site.other), last_id=first.last) as second:
        (tmp_path / "1").touch()
        second.wait_for("pieces")
    with reading(f"{site.url(job_id)}?starting_after={second.last}") as third:
        (tmp_path / "2").touch()
        third.wait_over()
    assert [pieces_of(one) for one in (first, second, third)] == [[word] for word in WORDS]


def test_the_jobs_of_a_batch_have_streams_of_their_own(site: Site) -> None:
    values = [[f"{n}-{k} " for k in range(5 + n)] for n in range(8)]
    ids = site.client.submit("m", *({"pieces": pieces} for pieces in values))
    for job_id, pieces in zip(ids, values, strict=True):
        *lines, last = site.lines(job_id)
        assert [piece for line in lines for piece in line["pieces"]] == pieces
        assert last["index"] == len(pieces)
        assert last["job"]["result"] == "".join(pieces)


def test_the_other_formats(site: Site) -> None:
    job_id = site.submit({"pieces": ["grün ", {"x": 1}, "end"]})
    *_, last = site.lines(job_id)
    assert last["job"]["result"] == ["grün ", {"x": 1}, "end"]
    text = httpx2.get(f"{site.url(job_id)}?format=text", timeout=60, verify=PLAIN)
    assert text.text == 'grün {"x":1}\nend'
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    behind = httpx2.get(
        f"{site.url(job_id)}?format=text&starting_after=2", timeout=60, verify=PLAIN
    )
    assert behind.text == "end"


def test_no_line_of_an_answer_has_another_end_in_it(site: Site) -> None:
    text = "a\u2028b\u2029c\x85d"
    job_id = site.submit({"pieces": [text]})
    lines = site.lines(job_id)
    assert lines[0]["pieces"] == [text]
    assert lines[-1]["job"]["result"] == text
    events = f"{site.api.url}/api/v1/jobs/{job_id}"
    bulk = f"{site.api.url}/api/v1/jobs/bulk"
    answers = [
        httpx2.get(
            site.url(job_id), headers={"accept": "text/event-stream"}, timeout=60, verify=PLAIN
        ),
        httpx2.get(f"{events}/events", timeout=60, verify=PLAIN),
        httpx2.post(
            bulk, content=json.dumps({"model": text}, ensure_ascii=False), timeout=60, verify=PLAIN
        ),
    ]
    for answer in answers:
        body = answer.content.decode()
        assert "\\u2028" in body
        assert len(body.splitlines()) == body.count("\n")


def test_what_a_handler_returns_takes_the_place_of_the_pieces(site: Site) -> None:
    *lines, last = site.lines(site.submit({"pieces": WORDS}, "returning"))
    assert [piece for line in lines for piece in line["pieces"]] == WORDS
    assert last["job"]["result"] == 3


def test_a_model_that_does_not_stream_has_an_end(site: Site) -> None:
    (line,) = site.lines(site.submit({"a": 1}, "plain"))
    assert (line["index"], line["job"]["result"]) == (0, {"a": 1})


def test_a_job_that_fails_in_the_middle(site: Site) -> None:
    job_id = site.submit({"pieces": WORDS, "fails": 2})
    *lines, last = site.lines(job_id)
    assert [piece for line in lines for piece in line["pieces"]] == WORDS[:2]
    assert last["job"]["error"]["message"] == "failed in the middle"
    # Plain text cannot tell it from a shorter result, so the connection is cut.
    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"{site.url(job_id)}?format=text", timeout=60, verify=PLAIN)


def test_after_a_crash_the_pieces_begin_again(site: Site, tmp_path: Path) -> None:
    job_id = site.submit({"pieces": WORDS, "until": str(tmp_path), "kills": 2})
    with reading(site.url(job_id)) as reader:
        for n in range(2):
            (tmp_path / str(n)).touch()
            reader.wait_for("pieces", n + 1)
        (tmp_path / "2").touch()
        reader.wait_over()
    assert reader.names[2] == "restarted"
    assert pieces_of(reader) == WORDS
    indexes = [event.index for event in reader.events[:-1]]
    assert indexes == sorted(set(indexes))
    # A client that comes later never sees what does not count.
    *lines, last = site.lines(job_id)
    assert [piece for line in lines for piece in line["pieces"]] == WORDS
    assert (last["job"]["result"], last["job"]["attempts"]) == ("one two three", 2)


def test_a_cancelled_job_ends_its_stream_and_its_generator(site: Site, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    value = {"pieces": ["x"] * 5000, "until": str(tmp_path), "closed": str(closed)}
    job_id = site.submit(value)
    with reading(site.url(job_id)) as reader:
        (tmp_path / "0").touch()
        reader.wait_for("pieces")
        site.api.http.delete(f"/api/v1/jobs/{job_id}")
        gates = count(1)

        def is_closed() -> bool:
            (tmp_path / str(next(gates))).touch()  # it ends between two pieces
            return closed.exists()

        wait_until(is_closed, "the generator is closed")
        ended = reader.wait_for("ended")
    assert ended.data["status"] == "cancelled"
    assert next(gates) < 5000


def test_pieces_of_an_outage_come_after_it(site: Site, tmp_path: Path) -> None:
    job_id = site.submit({"pieces": WORDS, "until": str(tmp_path)})
    with reading(site.url(job_id)) as reader:
        (tmp_path / "0").touch()
        reader.wait_for("pieces")
        site.client.redis.client_kill_filter(_type="normal", skipme=True)
        site.client.redis.client_kill_filter(_type="pubsub")
        (tmp_path / "1").touch()
        (tmp_path / "2").touch()
        reader.wait_over()
    assert pieces_of(reader) == WORDS
    assert reader.events[-1].index == 3


def test_pieces_that_are_not_kept_are_named(site: Site, tmp_path: Path) -> None:
    job_id = site.submit({"pieces": WORDS, "until": str(tmp_path)})
    (tmp_path / "0").touch()
    with reading(site.url(job_id)) as reader:
        reader.wait_for("pieces")
    (tmp_path / "1").touch()
    (tmp_path / "2").touch()
    site.lines(job_id)
    site.client.redis.xtrim(keys.pieces(job_id), minid="3-0", approximate=False)
    kept, *_ = site.client.redis.xrange(keys.pieces(job_id))
    first = int(kept[0].split(b"-")[0]) - len(json.loads(kept[1][b"p"])) + 1
    lines = site.lines(job_id)
    if first > 1:  # else all pieces came in one entry
        run = kept[0].split(b"-")[1].decode()
        missing = {"index": first - 1, "id": f"{first - 1}.{run}", "missing": [1, first - 1]}
        assert lines[0] == missing
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.get(f"{site.url(job_id)}?format=text", timeout=60, verify=PLAIN)
    assert lines[-1]["job"]["result"] == "one two three"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("format=xml", 400),
        ("starting_after=-1", 400),
        ("starting_after=x", 400),
        ("unknown=1", 400),
    ],
)
def test_a_query_that_is_not_valid(site: Site, query: str, status: int) -> None:
    job_id = site.submit({"pieces": []})
    assert httpx2.get(f"{site.url(job_id)}?{query}", timeout=60, verify=PLAIN).status_code == status
    assert httpx2.get(site.url("unknown"), timeout=60, verify=PLAIN).status_code == 404


def test_the_client_yields_pieces_while_they_come(site: Site, tmp_path: Path) -> None:
    with HttpClient(site.api.url) as client:
        job = client.submit("m", {"pieces": [*WORDS, {"n": 4}], "until": str(tmp_path)})
        pieces = client.stream(job)
        for n, piece in enumerate([*WORDS, {"n": 4}]):
            (tmp_path / str(n)).touch()
            assert next(pieces) == piece
        assert list(pieces) == []
        assert list(client.stream(job.id, starting_after=2)) == ["three", {"n": 4}]
        assert list(client.stream(job.id, starting_after=4)) == []
        assert list(client.stream(client.submit("plain", "x"))) == []
        with pytest.raises(errors.JobNotFound):
            list(client.stream("unknown"))


def test_the_async_client_yields_the_same(site: Site) -> None:
    async def read() -> list[Any]:
        async with AsyncClient(site.api.url) as client:
            job = await client.submit("m", {"pieces": WORDS})
            return [piece async for piece in client.stream(job)]

    assert asyncio.run(read()) == WORDS


def test_the_client_raises_for_a_job_that_fails(site: Site) -> None:
    with HttpClient(site.api.url) as client:
        job = client.submit("m", {"pieces": WORDS, "fails": 2})
        found: list[Any] = []
        with pytest.raises(errors.InputError, match="failed in the middle") as caught:
            found.extend(client.stream(job))
        assert caught.value.job_id == job.id


def test_the_client_raises_for_a_restart_and_reads_on_behind_it(site: Site, tmp_path: Path) -> None:
    with HttpClient(site.api.url) as client:
        job = client.submit("m", {"pieces": WORDS, "until": str(tmp_path), "kills": 1})
        pieces = client.stream(job)
        (tmp_path / "0").touch()
        assert next(pieces) == "one "
        for n in (1, 2):
            (tmp_path / str(n)).touch()
        with pytest.raises(errors.StreamRestarted) as caught:
            next(pieces)
        assert list(client.stream(job, starting_after=caught.value.place)) == WORDS


def test_the_client_raises_for_pieces_that_are_not_kept(site: Site, tmp_path: Path) -> None:
    with HttpClient(site.api.url) as client:
        job = client.submit("m", {"pieces": WORDS, "until": str(tmp_path)})
        pieces = client.stream(job)
        for n, word in enumerate(WORDS):  # each in an entry of its own
            (tmp_path / str(n)).touch()
            assert next(pieces) == word
        assert list(pieces) == []
        site.client.redis.xtrim(keys.pieces(job.id), minid="3-0", approximate=False)
        with pytest.raises(errors.PiecesMissing) as caught:
            next(client.stream(job))
        assert (caught.value.first, caught.value.last) == (1, 2)
        assert list(client.stream(job, starting_after=2)) == ["three"]


def test_submit_prints_the_pieces_of_its_job(site: Site, tmp_path: Path) -> None:
    cli = CommandsWithin(site.api.url, tmp_path)

    def submitted(value: Any, *more: str, cli: Commands = cli) -> tuple[int, str, str]:
        found = cli.run("submit", "m", "--stream", "--json-input", json.dumps(value), *more)
        return found.returncode, found.stdout.decode(), found.stderr.decode()

    four, all_of_it = {"pieces": [*WORDS, 4]}, (0, "one two three4\n", "")
    assert submitted(four) == all_of_it
    assert submitted(four, cli=Commands(site.api.url, tmp_path)) == all_of_it
    code, printed, said = submitted({"pieces": WORDS, "fails": 2})
    assert (code, printed) == (1, "one two \n")
    assert "failed: failed in the middle" in said
    whole = cli.run("submit", "plain", "--stream", "--json-input", '{"x": 1}')
    assert (whole.returncode, whole.stdout) == (0, b'{"x":1}\n')
    (gate := tmp_path / "gate").mkdir()
    for n in range(3):
        (gate / str(n)).touch()
    code, printed, said = submitted({"pieces": WORDS, "until": str(gate), "kills": 1})
    assert (code, printed) in (
        (0, "one \none two three\n"),
        (0, "one two three\n"),  # it had died before the first pieces were read
    )
    for wrong in (["--json"], ["--output", "rows"], ["--text", "another"]):
        code, printed, said = submitted({"pieces": WORDS}, *wrong)
        assert (code, printed) == (2, "")
        assert "--stream takes one input" in said


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/models/m/jobs"),
        ("POST", "/api/v1/models/m/versions/1.0/jobs"),
        ("POST", "/api/v1/jobs"),
        ("PUT", "/api/v1/jobs/{id}"),
    ],
)
def test_a_submit_is_answered_with_the_pieces(
    site: Site, tmp_path: Path, method: str, path: str
) -> None:
    body: Any = {"pieces": WORDS, "until": str(tmp_path)}
    if not path.startswith("/api/v1/models"):
        body = {"model": "m", "input": body}
    url = site.api.url + path.replace("{id}", f"put-{tmp_path.name}")
    with reading(url, body=body, method=method) as reader:
        assert (reader.status, reader.headers["content-type"]) == (200, "text/event-stream")
        for n in range(3):
            assert pieces_of(reader) == WORDS[:n]
            (tmp_path / str(n)).touch()
            reader.wait_for("pieces", n + 1)
        ended = reader.wait_for("ended").data
    assert ended["result"] == "one two three"
    assert reader.headers["location"] == f"/api/v1/jobs/{ended['id']}"


def test_the_job_of_a_stream_goes_on_without_its_client(site: Site, tmp_path: Path) -> None:
    body = {"pieces": WORDS, "until": str(tmp_path)}
    (tmp_path / "0").touch()
    with reading(f"{site.api.url}/api/v1/models/m/jobs", body=body) as first:
        first.wait_for("pieces")
    location = first.headers["location"]
    wait_until(lambda: not site.api.services.stream_limit.open_streams, "it has hung up")
    with reading(f"{site.other.url}{location}/stream", first.last) as second:
        for n in (1, 2):
            (tmp_path / str(n)).touch()
        assert second.wait_for("ended").data["result"] == "one two three"
    assert [pieces_of(one) for one in (first, second)] == [WORDS[:1], WORDS[1:]]


def test_a_repeat_of_a_streaming_submit_streams_the_same_job(site: Site) -> None:
    url, key = f"{site.api.url}/api/v1/models/m/jobs", {"idempotency-key": "the-same"}
    with reading(url, body={"pieces": WORDS}, **key) as first:
        first.wait_over()
    with reading(url, body={"pieces": WORDS}, **key) as again:
        again.wait_over()
    assert pieces_of(first) == pieces_of(again) == WORDS
    assert first.headers["location"] == again.headers["location"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers


@pytest.mark.parametrize(
    ("path", "body", "status", "problem"),
    [
        ("/api/v1/models/none/jobs", {}, 404, "model-not-found"),
        ("/api/v1/models/m/jobs?priority=x", {}, 400, "invalid-request"),
        ("/api/v1/jobs", {"model": "m"}, 400, "invalid-request"),
        ("/api/v1/models/m/jobs?id=1", {}, 400, "invalid-request"),
    ],
)
def test_a_refused_submit_is_no_stream(
    site: Site, path: str, body: Any, status: int, problem: str
) -> None:
    headers = {"accept": "text/event-stream"}
    found = httpx2.post(
        f"{site.api.url}{path}", json=body, headers=headers, timeout=60, verify=PLAIN
    )
    assert found.status_code == status
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["type"] == f"/problems/{problem}"


def test_a_submit_beyond_the_limit_of_streams_makes_no_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.api.services.stream_limit, "_most", 0)
    url, headers = f"{site.api.url}/api/v1/jobs/one-too-many", {"accept": "text/event-stream"}
    body = {"model": "m", "input": {"pieces": WORDS}}
    found = httpx2.put(url, json=body, headers=headers, timeout=60, verify=PLAIN)
    assert (found.status_code, found.json()["type"]) == (429, "/problems/too-many-streams")
    assert httpx2.get(url, timeout=60, verify=PLAIN).status_code == 404
    assert not site.api.services.stream_limit.open_streams


def test_a_client_that_reads_nothing_costs_little_and_holds_nobody_up(site: Site) -> None:
    """What it does not read stays in Redis."""
    count, size = 400, 100_000
    job_id = site.submit({"count": count, "size": size}, "filling")
    site.client.wait(job_id)
    connections = site.api.server.server_state.connections

    def held_bytes() -> int:
        return sum(one.transport.get_write_buffer_size() for one in list(connections))

    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect(("127.0.0.1", site.api.port))
        target = f"/api/v1/jobs/{job_id}/stream?format=text"
        slow.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        wait_until(held_bytes, "its connection is full")
        for _ in range(2):
            text = httpx2.get(f"{site.url(job_id)}?format=text", timeout=60, verify=PLAIN).text
            assert text.split() == [str(n) for n in range(count)]
        assert held_bytes() < 1024 * 1024 < count * size / 20
        received = bytearray()
        while part := slow.recv(1 << 20):
            received += part
    assert len(received) > count * size
    assert received.endswith(b"0\r\n\r\n")


@pytest.mark.slow
def test_clients_that_reconnect_over_kills_lose_no_piece(tmp_path: Path) -> None:
    """API processes are killed while clients read; each client goes on behind its last index."""
    models = write_models(tmp_path, m=model())
    words = [f"{n} " for n in range(60)]
    (gate := tmp_path / "gate").mkdir()
    with (
        redis_server() as server,
        celery_worker(server.url, models, tmp_path) as worker,
        Client(server.url, models) as client,
        api_processes(tmp_path / "api", server.url, 2) as api,
    ):
        worker.wait_ready("m")
        (job_id,) = client.submit("m", {"pieces": words, "until": str(gate)})
        url = f"{api.url}/api/v1/jobs/{job_id}/stream"
        following = ThreadPoolExecutor(1)
        followed = following.submit(lambda: list(HttpClient(api.url).stream(job_id)))
        seen: list[list[Any]] = [[], [], []]
        last = [""] * len(seen)
        for until in range(10, len(words) + 1, 10):
            for n in range(until - 10, until):
                (gate / str(n)).touch()
            for number, known in enumerate(seen):
                with reading(url, last[number]) as reader:
                    wait_until(
                        partial(_has, known, reader, until),
                        "the next pieces come",
                    )
                    if number == 0:
                        os.kill(api.pids()[0], signal.SIGKILL)
                    known += pieces_of(reader)
                    last[number] = reader.last
                wait_until(lambda: len(api.pids()) == 2, "both processes are back")
        assert seen == [words] * len(seen)
        assert followed.result(60) == words
        following.shutdown()


def _has(known: list[Any], reader: Reader, count: int) -> bool:
    return len(known) + len(pieces_of(reader)) >= count
