"""Generators: jobs that join a running batch, leave it, and go on in another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.model.catalog import load_catalog
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import jobs as job_scripts
from headrace.server.recovery import release_incarnation
from tests.harness.clients.script_calls import Queue
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import reading
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models
from workers.leases.manager import LOG_PAGE

HANDLER = f"{HANDLERS / 'generation/generating.py'}:Words"
SLOTS = 4


def model(**more: Any) -> dict[str, Any]:
    return {"handler": HANDLER, "options": {"slots": SLOTS}, **more}


def words(count: int) -> str:
    return "".join(f"w{n} " for n in range(count))


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("generator")
    models = {"m": model(), "brief": model(timeout_s=0.5, min_timeout_s=0.5)}
    with shared_deployment.site(folder, models) as found:
        yield found


def opened(folder: Path, *names: int) -> None:
    for name in names:
        (folder / str(name)).touch()


def test_a_short_request_joins_long_ones_and_ends_first(site: Site, tmp_path: Path) -> None:
    long = [site.submit({"words": 3, "until": str(tmp_path)}) for _ in range(2)]
    opened(tmp_path, 0)
    with reading(site.stream(long[0])) as reader, reading(site.stream(long[1])) as other:
        reader.wait_for("pieces")
        other.wait_for("pieces")
        short = site.submit({"words": 1})
        assert site.ended(short)["result"]["usage"]["beside"] == 3
        assert {site.shown(job_id)["status"] for job_id in long} == {"running"}
        opened(tmp_path, 1, 2)
        for job_id in long:
            found = site.ended(job_id)
            assert found["result"]["text"] == words(3)
            assert found["result"]["finish_reason"] == "stop"


def test_more_requests_than_slots_all_run(site: Site) -> None:
    ids = site.client.submit("m", *({"words": 1 + n % 7} for n in range(60)))
    for n, job_id in enumerate(ids):
        found = site.ended(job_id)["result"]
        assert found["text"] == words(1 + n % 7)
        assert found["usage"]["beside"] <= SLOTS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"none": 1}, "give words"),
        ({"words": 2, "refuses": 1}, "refused"),
        ({"words": 2, "fails": 1}, "failed in the middle"),
        ({"words": 2, "cost": 101}, "the request needs 101 tokens of the model's memory"),
    ],
)
def test_a_bad_request_fails_alone(site: Site, tmp_path: Path, value: Any, message: str) -> None:
    good = site.submit({"words": 2, "until": str(tmp_path)})
    bad = site.submit(value)
    opened(tmp_path, 0, 1)
    found = site.ended(bad)
    assert found["error"]["type"] == "input-error"
    assert message in found["error"]["message"]
    # One that was raised shows where; the others come from no place that helps.
    assert ("traceback" in found) == ("refuses" in value)
    assert site.ended(good)["result"]["text"] == words(2)


def test_a_request_whose_cost_raises_fails_alone(site: Site, tmp_path: Path) -> None:
    good = site.submit({"words": 2, "until": str(tmp_path)})
    bad = site.submit({"words": 2, "cost": "x"})
    assert "invalid literal for int()" in site.ended(bad)["error"]["message"]
    opened(tmp_path, 0, 1)
    found = site.ended(good)
    assert (found["result"]["text"], found["attempts"]) == (words(2), 1)


def test_a_request_waits_for_the_memory_of_others(site: Site, tmp_path: Path) -> None:
    first = site.submit({"words": 2, "cost": 60, "until": str(tmp_path)})
    second = site.submit({"words": 1, "cost": 60})
    opened(tmp_path, 0, 1)
    assert site.ended(first)["result"]["usage"]["beside"] == 1
    assert site.ended(second)["result"]["usage"]["beside"] == 1


def test_a_cancelled_request_leaves_the_others(site: Site, tmp_path: Path) -> None:
    stays = site.submit({"words": 3, "until": str(tmp_path)})
    leaves = site.submit({"words": 1000, "until": str(tmp_path)})
    with reading(site.stream(leaves)) as reader, reading(site.stream(stays)) as other:
        opened(tmp_path, 0)
        reader.wait_for("pieces")
        other.wait_for("pieces")
        assert site.api.http.delete(f"/api/v1/jobs/{leaves}").json()["outcome"] == "asked"
        assert reader.wait_for("ended").data["status"] == "cancelled"
        opened(tmp_path, 1, 2)
    assert site.ended(stays)["result"]["text"] == words(3)
    assert site.ended(site.submit({"words": 1}))["result"]["usage"]["beside"] == 1


def test_a_request_beyond_its_timeout_leaves_and_the_process_lives(
    site: Site, tmp_path: Path
) -> None:
    pid = site.ended(site.submit({"words": 1}, "brief"))["result"]["usage"]["pid"]
    late = site.submit({"words": 10**9}, "brief")
    found = site.ended(late)
    assert found["error"]["type"] == "timeout"
    again = site.ended(site.submit({"words": 1}, "brief"))
    assert again["result"]["usage"] == {"completion_tokens": 1, "beside": 1, "pid": pid}


def test_a_request_that_hangs_ends_once_although_a_newer_one_has_joined(
    site: Site, tmp_path: Path
) -> None:
    opened(tmp_path, 0, 1)
    hangs = site.submit({"words": 2, "until": str(tmp_path), "hangs": 1}, "brief")
    wait_until(lambda: (tmp_path / "hung").exists(), "the step hangs", 60)
    newer = site.submit({"words": 1}, "brief", timeout=600)
    assert site.ended(hangs)["error"]["type"] == "timeout"
    assert site.ended(newer)["status"] == "succeeded"


@pytest.mark.parametrize("forgets", [False, True])
def test_after_a_crash_requests_go_on_where_they_were(
    site: Site, tmp_path: Path, forgets: bool
) -> None:
    value = {"words": 6, "until": str(tmp_path), "kills": 3, "forgets": forgets}
    job_id = site.submit(value)
    with reading(site.stream(job_id)) as reader:
        for n in range(3):
            opened(tmp_path, n)
            reader.wait_for("pieces", n + 1)
        opened(tmp_path, *range(3, 6))
        ended = reader.wait_for("ended").data
    assert ended["result"]["text"] == words(6)
    assert ended["attempts"] == 2
    pieces = [piece for event in reader.events if event.name == "pieces" for piece in event.data]
    if forgets:
        assert "restarted" in reader.names
        assert "".join(pieces[3:]) == words(6)
    else:
        assert "restarted" not in reader.names
        assert "".join(pieces) == words(6)


def test_the_newest_request_is_suspected_and_the_others_go_on(site: Site, tmp_path: Path) -> None:
    (gate := tmp_path / "gate").mkdir()
    (killer := tmp_path / "killer").mkdir()
    others = [site.submit({"words": 4, "until": str(gate)}) for _ in range(2)]
    opened(gate, 0, 1)
    with reading(site.stream(others[0])) as one, reading(site.stream(others[1])) as two:
        one.wait_for("pieces", 1)
        two.wait_for("pieces", 1)
        opened(killer, 0)
        suspect = site.submit({"words": 2, "until": str(killer), "kills": 0})
        opened(killer, 1)
        opened(gate, 2, 3)
        assert one.wait_for("ended").data["result"]["text"] == words(4)
        assert two.wait_for("ended").data["result"]["text"] == words(4)
        assert "restarted" not in one.names + two.names
    assert site.ended(suspect)["attempts"] == 2
    # An orderly release undoes the attempt.
    assert [site.shown(job_id)["attempts"] for job_id in others] == [1, 1]


def test_a_step_that_raises_fails_the_request_that_causes_it(site: Site) -> None:
    ids = site.client.submit("m", {"words": 9}, {"words": 5, "raises": 3}, {"words": 7})
    found = [site.ended(job_id) for job_id in ids]
    assert [one["status"] for one in found] == ["succeeded", "failed", "succeeded"]
    assert found[1]["error"]["message"] == "ValueError: step raised"
    assert found[0]["result"]["text"] == words(9)


def test_a_long_log_is_read_in_pages(tmp_path: Path) -> None:
    count = 2 * LOG_PAGE + 7
    path = write_models(tmp_path, m=model())
    # A lease that is lost meanwhile lets the log be read once more.
    lasting = {"HEADRACE_LEASE_TTL_S": "3600"}
    with redis_server() as server, Client(server.url, path) as client:
        (job_id,) = client.submit("m", {"words": count + 5})
        queue = Queue(client.redis, "m")
        leased = queue.claim_one(lease_us=3600 * US_PER_S)
        for n in range(count):
            row = (job_id, leased.token, 1, n + 1, 1, b'["w%d "]' % n, b"[%d]" % n)
            queue.send(job_scripts.append_pieces("m", [row]))
        with celery_worker(server.url, path, tmp_path, environ=lasting) as worker:
            worker.wait_ready("m")
            client.redis.config_resetstat()
            queue.release(leased)
            client.wait(job_id)
        calls: Any = client.redis.info("commandstats")
        assert calls["cmdstat_xrange"]["calls"] == 3
        assert client.result(job_id)["text"] == words(count + 5)
        nothing_leaks(client.redis)


def test_requests_go_on_in_another_worker(tmp_path: Path) -> None:
    (gate := tmp_path / "gate").mkdir()
    path = write_models(tmp_path, m=model())
    first = {"HEADRACE_LEASE_TTL_S": "3600", "HEADRACE_INCARNATION": "first"}
    with (
        redis_server() as server,
        Client(server.url, path) as client,
        api_server(server.url, load_catalog(path)) as api,
        celery_worker(server.url, path, tmp_path, environ=first) as worker,
    ):
        worker.wait_ready("m")
        (job_id,) = client.submit("m", {"words": 4, "until": str(gate)})
        with reading(f"{api.url}/api/v1/jobs/{job_id}/stream") as reader:
            opened(gate, 0, 1)
            wait_until(lambda: reader.events and reader.events[-1].index == 2, "two")
            worker.kill()
            assert release_incarnation(server.url, "first") == 1
            with celery_worker(server.url, path, tmp_path, node="again@test") as again:
                again.wait_ready("m")
                opened(gate, 2, 3)
                ended = reader.wait_for("ended").data
        assert ended["result"]["text"] == words(4)
        assert "restarted" not in reader.names
