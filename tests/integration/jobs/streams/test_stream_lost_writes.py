"""Redis loses the newest pieces of streams in a crash, with the worker: each reader notices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from headrace import Client as HttpClient
from headrace import errors
from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from tests.extensions.openai.harness.batches import sdk
from tests.harness.http.events import Reader, reading
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

#: What is in the file of appended writes is all that a crash leaves.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
WORDS = [f"{n} " for n in range(8)]
#: How many pieces the readers have when Redis crashes.
HAD = 5
SHORT_LEASE = {"HEADRACE_LEASE_TTL_S": "1"}
HANDLER = HANDLERS / "generation/yielding.py"


def opened(gate: Path, *names: int) -> None:
    for name in names:
        (gate / str(name)).touch()


def cut_short(read: Callable[[], Iterable[Any]]) -> tuple[list[Any], Exception]:
    """What came before the error with which a stream ended, and the error."""
    found: list[Any] = []
    try:
        found.extend(read())
    except Exception as error:  # noqa: BLE001 - the test checks it
        return found, error
    raise AssertionError(f"the stream ended without an error: {found}")


def text_parts(url: str) -> Iterable[str]:
    with httpx2.stream("GET", url, timeout=120, verify=PLAIN) as answer:
        yield from answer.iter_text()


def pieces_after_restart(reader: Reader) -> list[Any]:
    reader.wait_for("ended")
    at = max(n for n, event in enumerate(reader.events) if event.name == "restarted")
    return [piece for one in reader.events[at:] if one.name == "pieces" for piece in one.data]


@pytest.mark.parametrize("kept", [0, 2], ids=["the claims too", "some pieces"])
def test_no_reader_gets_pieces_of_two_runs_as_one_text(tmp_path: Path, kept: int) -> None:
    (gate := tmp_path / "gate").mkdir()
    value = {"pieces": WORDS, "until": str(gate)}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": json.dumps(value)}]}
    models = write_models(
        tmp_path, m={"handler": f"{HANDLER}:Yielding"}, chat={"handler": f"{HANDLER}:Chatting"}
    )
    with (
        redis_server("valkey9", *DURABLE) as server,
        Client(server.url, models) as queues,
        api_server(server.url, load_catalog(models)) as api,
        sdk(api.url) as client,
        HttpClient(api.url) as http,
        ThreadPoolExecutor() as pool,
        ExitStack() as stack,
    ):
        create = client.chat.completions.create
        (job_id,) = queues.submit("m", value)
        made = client.responses.create(model="chat", input=json.dumps(value), background=True)
        logs = [keys.pieces(job_id), keys.pieces(made.id)]
        url = f"{api.url}/api/v1/jobs/{job_id}/stream"
        reader = stack.enter_context(reading(url))
        followers = [
            pool.submit(cut_short, read)
            for read in (
                lambda: text_parts(f"{url}?format=text"),
                lambda: http.stream(job_id),
                lambda: create(model="chat", stream=True, **chat),
            )
        ]
        queue = keys.queue_name("chat")
        wait_until(lambda: queues.redis.llen(queue) == 2, "all jobs wait")
        (file,) = server.folder.glob("appendonlydir/*.incr.aof")
        size = file.stat().st_size

        def written(count: int) -> bool:
            newest = [queues.redis.xrevrange(key, count=1) for key in logs]
            return all(log and log[0][0].startswith(b"%d-" % count) for log in newest)

        with celery_worker(server.url, models, tmp_path, environ=SHORT_LEASE) as worker:
            if kept:
                opened(gate, *range(kept))
                wait_until(lambda: written(kept), "the pieces come that a crash leaves")
                size = file.stat().st_size
            opened(gate, *range(HAD))
            wait_until(lambda: written(HAD), "the next pieces come")
            wait_until(lambda: reader.events and reader.last.startswith(f"{HAD}."), "they are read")
            server.stop(kill=True)
            worker.kill()
        with file.open("r+b") as writes:
            writes.truncate(size)
        server.start()
        other = stack.enter_context(api_server(server.url, load_catalog(models)))
        later = f"{other.url}/api/v1/jobs/{job_id}/stream"
        resumed = stack.enter_context(reading(later, last_id=reader.last))
        # A number alone is compared with the end of the log.
        numbered = stack.enter_context(reading(f"{later}?starting_after={HAD}"))
        numbered.wait_for("restarted")
        with sdk(other.url) as second:
            stream = second.responses.retrieve(made.id, stream=True, starting_after=HAD + 3)
            with pytest.raises(openai.APIError, match="cannot go on with the answer"):
                list(stream)
        with celery_worker(
            server.url, models, tmp_path, node="second@test", environ=SHORT_LEASE
        ) as worker:
            opened(gate, *range(len(WORDS)))
            for one in (reader, resumed, numbered):
                assert pieces_after_restart(one) == WORDS
            (text, cut), (_, restarted), (_, failed) = [one.result(120) for one in followers]
        assert "".join(text) == "".join(WORDS[:HAD])
        assert isinstance(cut, httpx2.RemoteProtocolError)
        assert isinstance(restarted, errors.StreamRestarted)
        assert isinstance(failed, openai.APIError)
