"""A batch through kill -9 of its runner, the API, the worker and Redis: each line has one row."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extensions.openai.batches.files import FileStore
from extensions.openai.batches.output import OutputFile
from extensions.openai.batches.store import IN_PROGRESS, BatchSpec, SavedProgress
from extensions.openai.batches.store import BatchStore as Records
from headrace.config.settings import Settings
from headrace.errors import FileMissing
from headrace.payloads.stores import build_stores
from headrace.redis.script_client import ScriptClient
from tests.extensions.openai.harness.batches import batches_at, line
from tests.harness.clients.payloads import make_due, payload_keys
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.servers.up import ROOT, RunningUp, running_up, write_models
from tests.harness.wait import wait_until

HANDLER = f"{ROOT / 'tests/harness/handlers/trouble/chaotic.py'}:InTurn"
LINES = 1200
ENDPOINT = "/api/v1/models/chaotic/jobs"
#: At how many executions who is killed.
KILLS = ((150, "runner"), (400, "api"), (600, "runner"), (700, "cpu0"), (900, "redis"))


def body(n: int) -> dict[str, Any]:
    return {"do": "bad" if n % 10 == 3 else "plain", "n": n}


class Log:
    """The executions that the handler has written down."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def jobs(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []


def states_of(up: RunningUp, ids: bytes) -> Any:
    """Return the API's records of these jobs; nothing while it is down."""
    kind = {"Content-Type": "application/json"}
    status, records = up.request("POST", "/api/v1/jobs/status", ids, **kind)
    return records if status == 200 else None


def ended(up: RunningUp, ids: list[str]) -> set[str]:
    """Which of these jobs have ended by now; those that succeeded may be forgotten already."""
    found: set[str] = set()
    for at in range(0, len(ids), 1000):
        some = ids[at : at + 1000]
        text = ('{"ids":[' + ",".join(f'"{one}"' for one in some) + "]}").encode()
        # The API may still be on its way back from a kill.
        records = wait_until(partial(states_of, up, text), "the API answers", 60)
        found |= {
            one
            for one, job in zip(some, records["jobs"], strict=True)
            if job is None or job["status"] in ("succeeded", "failed")
        }
    return found


def kill(up: RunningUp, name: str) -> None:
    # After its last end it may be on its way back.
    pid = int(wait_until(lambda: up.record()["pids"][name], f"{name} is there", 60))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid), f"{name} is gone", 30)


def test_every_line_has_one_row_and_none_that_had_ended_runs_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    (tmp_path / "marks").mkdir()
    options = {"log": str(tmp_path / "log"), "marks": str(tmp_path / "marks"), "pause_s": 0.05}
    model = {"handler": HANDLER, "max_batch_size": 8, "options": options}
    models = write_models(tmp_path, {"chaotic": model})
    lines = [line(f"line-{n}", "chaotic", body(n)) for n in range(LINES)]
    # With `everysec` a killed Redis may lose what was settled last, and run it again.
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        redis_server("valkey9", *durable) as server,
        running_up(
            tmp_path,
            models=models,
            runner=True,
            HEADRACE_LEASE_TTL_S="3",
            HEADRACE_REDIS_URL=server.url,
        ) as up,
        batches_at(f"http://127.0.0.1:{up.port}") as batches,
    ):
        made = batches.create(lines, ENDPOINT)
        # Executions of what had ended, as counted once it had: one in the midst of a kill has two.
        over: dict[str, int] = {}
        for count, name in KILLS:
            wait_until(lambda count=count: len(log.jobs()) >= count, f"{count} executions", 120)  # type: ignore[misc]
            found = ended(up, sorted(set(log.jobs())))
            counts = Counter(log.jobs())
            over |= {job: counts[job] for job in found if job not in over}
            if name == "redis":
                server.stop(kill=True)
                server.start()
            else:
                kill(up, name)
        batch = batches.ended(made, 240)
        assert batch.status == "completed"
        good, bad = batches.both(batch)
    assert {name: row["response"]["body"]["result"]["n"] for name, row in good.items()} == {
        f"line-{n}": n for n in range(LINES) if n % 10 != 3
    }
    assert sorted(bad) == sorted(f"line-{n}" for n in range(LINES) if n % 10 == 3)
    assert {row["error"]["code"] for row in bad.values()} == {"input-error"}
    runs = Counter(log.jobs())
    assert len(runs) == LINES
    assert len(over) > 400
    assert {job: runs[job] for job in over} == over
    # Only what a kill met in the midst ran twice: a batch or two of the model process.
    assert sum(runs.values()) - LINES <= 8 * 2 * 3


class Shelf:
    """Files and batches over one Redis, as the parts of a deployment have them."""

    def __init__(self, server: RedisServer, lease_s: float = 30) -> None:
        self.stores = build_stores(Settings(), server.url)
        caller = ScriptClient(self.stores.client)
        self.files = FileStore(self.stores, caller, 3600)
        self.records = Records(caller, 3600, lease_s)


@pytest.fixture
def shelf(redis_db: RedisServer) -> Iterator[Shelf]:
    made = Shelf(redis_db)
    yield made
    made.stores.close()


SPEC = BatchSpec(endpoint=ENDPOINT, input_file_id="file-0", window="1h", window_s=3600)


def test_who_has_lost_its_batch_changes_nothing(shelf: Shelf, redis_db: RedisServer) -> None:
    batch = shelf.records.create(SPEC)
    paused = shelf.records.claim()
    assert paused is not None
    assert shelf.records.claim() is None
    assert shelf.records.save(paused, IN_PROGRESS, lease_s=0) is not None
    second = shelf.records.claim()
    assert second is not None
    assert second.batch.id == batch.id
    # The first one wakes up, and writes what it still had.
    output = OutputFile(shelf.files, "output.jsonl", "", 60)
    output.append(b"stale\n")
    output.flush()
    stale = output.written()
    assert stale is not None
    with redis_db.client() as client:
        before = {key: client.dump(key) for key in client.keys("hr:batch*") + client.keys("hr:f*")}
        for status in ("", "completed", "failed"):
            assert shelf.records.save(paused, status, {"total": 9}, [stale]) is None
        after = {key: client.dump(key) for key in client.keys("hr:batch*") + client.keys("hr:f*")}
        assert after == before
        # What it has written belongs to no file, and is swept.
        make_due(client)
        shelf.stores.sweep()
        assert payload_keys(client) == []
    assert shelf.records.save(second, "completed", {"total": 1}) is not None
    assert shelf.records.get(batch.id).status == "completed"
    assert shelf.records.save(second) is None
    assert shelf.records.claim() is None


def test_what_a_runner_had_that_is_gone_is_for_the_next_at_once(shelf: Shelf) -> None:
    made = [shelf.records.create(SPEC).id for _ in range(3)]
    first = [shelf.records.claim("one"), shelf.records.claim("one"), shelf.records.claim("two")]
    assert shelf.records.claim("three") is None
    assert shelf.records.release("nobody") == 0
    assert shelf.records.release("one") == 2
    taken = [shelf.records.claim("three"), shelf.records.claim("three")]
    ids = [lease.batch.id for lease in (*first, *taken) if lease is not None]
    assert sorted(ids[:3]) == sorted(made)
    assert sorted(ids[3:]) == sorted(ids[:2])
    assert shelf.records.claim("three") is None
    # They are no longer the first one's, also where it is not quite dead.
    assert first[0] is not None
    assert shelf.records.save(first[0]) is None
    assert shelf.records.release("one") == 0


def test_an_output_grows_by_its_last_part_and_is_gone_on_with(
    shelf: Shelf, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extensions.openai.batches.output.FULL_BYTES", 100)
    shelf.records.create(SPEC)
    lease = shelf.records.claim()
    assert lease is not None
    text, mark, file_id = b"", None, ""
    for n in range(40):
        # Each time another runner, as after a kill.
        output = OutputFile(shelf.files, "output.jsonl", "", 60, mark)
        # What was appended and not saved is no part of it.
        lost = OutputFile(shelf.files, "output.jsonl", "", 60, mark)
        lost.append(b"lost\n")
        lost.flush()
        piece = b"%d " % n * (n % 13)
        output.append(piece)
        output.flush()
        output.append(b"twice\n")
        output.flush()
        text += piece + b"twice\n"
        mark, file_id = output.mark, output.id
        written = output.written()
        assert written is not None
        assert shelf.records.save(lease, "", {}, [written]) is not None
        output.saved()
        with pytest.raises(FileMissing):
            shelf.files.get(file_id)
    last = SavedProgress(file_id, "output.jsonl", "", len(text), 60, "", [])
    assert shelf.records.save(lease, "completed", {}, [last]) is not None
    reader = shelf.files.open(file_id)
    assert b"".join(reader.chunks()) == text
    assert b"".join(reader.chunks(250)) == text[250:]
    with redis_db.client() as client:
        make_due(client)
        shelf.stores.sweep()
        assert len(payload_keys(client)) == -(-len(text) // 100)
        assert b"".join(shelf.files.open(file_id).chunks()) == text
        assert all(client.ttl(key) > 0 for key in payload_keys(client))
    shelf.files.delete(file_id)
