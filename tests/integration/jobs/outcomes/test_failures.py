"""Why jobs failed: groups of failures over HTTP, their retry, and the search of jobs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from headrace import Client
from headrace.access.api_key import Scope
from headrace.cli.shared.exit_codes import ExitCode
from headrace.config.model.catalog import load_catalog
from headrace.errors import Conflict, InputGone
from headrace.queue import failures as failing
from headrace.queue import listing
from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as scripts
from tests.harness.clients.access import bearer, make_key
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.clients.commands import headrace_here
from tests.harness.fakes.worker import Answer, claim, echo, failure, settle
from tests.harness.http.bulk import BULK, ndjson
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import api_process
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

FAILURES = "/api/v1/failures"
JOBS = "/api/v1/jobs"
HANDLER = """
from pathlib import Path

from headrace import Handler, errors

class Orders(Handler):
    def inference(self, items):
        return [self.total(item) for item in items]

    def total(self, item):
        if Path(__file__).with_name("mended").exists():
            return "mended"
        if item.get("refuse"):
            raise errors.InputError("the order is closed")
        if item.get("odd"):
            return 1 / item["zero"]
        return item["customer_id"]
"""
KEY_ERROR_AT, ZERO_AT = "orders.py:17", "orders.py:16"


class Held(NamedTuple):
    """A job that a worker has leased."""

    id: str
    token: str


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("failures")
    (made / "orders.py").write_text(HANDLER)
    return made


@pytest.fixture(scope="module")
def models(folder: Path) -> Path:
    return write_models(folder, orders=handler(folder), fake=handler(folder))


def handler(folder: Path) -> dict[str, Any]:
    return {"handler": f"{folder / 'orders.py'}:Orders", "max_batch_size": 4}


@pytest.fixture(scope="module")
def orders(server: RedisServer, models: Path, folder: Path) -> Iterator[ApiServer]:
    (folder / "worker").mkdir()
    served = write_models(folder / "worker", orders=handler(folder))
    environ = {"HEADRACE_INLINE_LIMIT_BYTES": "1000"}
    with (
        celery_worker(server.url, served, folder, environ=environ) as worker,
        api_server(server.url, load_catalog(models), inline_limit_bytes=1000) as api,
    ):
        worker.wait_ready("orders")
        yield api


@pytest.fixture
def api(orders: ApiServer, server: RedisServer, folder: Path) -> Iterator[ApiServer]:
    yield orders
    (folder / "mended").unlink(missing_ok=True)
    with server.client() as client:
        for model in ("orders", "fake"):
            client.delete(keys.failures(model), keys.job_index(model))


def submit(api: ApiServer, *inputs: Any, model: str = "orders", **options: Any) -> list[str]:
    lines = [{"model": model, "input": one, "options": options} for one in inputs]
    answers = api.http.post(BULK, content=ndjson(lines)).text.splitlines()
    return [httpx2.Response(200, text=answer).json()["id"] for answer in answers]


def ended(api: ApiServer, *ids: str) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        answer = api.http.post(f"{JOBS}/status", json={"ids": ids}).json()
        jobs: list[dict[str, Any]] = answer["jobs"]
        over = all(job["status"] in ("succeeded", "failed") for job in jobs)
        return jobs if over else []

    return wait_until(read, "the jobs have ended")


def groups(api: ApiServer, **query: Any) -> list[dict[str, Any]]:
    response = api.http.get(FAILURES, params=query)
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["failures"]
    return found


def search(api: ApiServer, **query: Any) -> list[str]:
    """The ids of all pages."""
    ids: list[str] = []
    while True:
        page = api.http.get(JOBS, params=query).json()
        ids += [job["id"] for job in page["jobs"]]
        if page["cursor"] is None:
            return ids
        query["cursor"] = page["cursor"]


def retry(api: ApiServer, group: str) -> dict[str, Any]:
    response = api.http.post(f"{FAILURES}/{group}/retry")
    assert response.status_code == 200, response.text
    done: dict[str, Any] = response.json()
    return done


def test_failures_are_grouped_and_a_whole_group_is_retried(api: ApiServer, folder: Path) -> None:
    large = {"pad": "x" * 5000}
    keyed = submit(api, *({"n": n} for n in range(12)), large)
    odd = submit(api, {"odd": 1, "zero": 0})
    refused = submit(api, {"refuse": 1})
    jobs = ended(api, *keyed, *odd, *refused)
    found = {group["where"]: group for group in groups(api)}
    group = found[KEY_ERROR_AT]
    assert group["count"] == 13
    assert (group["model"], group["type"], group["exception"]) == (
        "orders", "handler-error", "KeyError",
    )  # fmt: skip
    assert group["message"] == "KeyError: 'customer_id'"
    assert set(group["jobs"]) < set(keyed)
    assert len(group["jobs"]) == 10
    times = [job["finished_at"] for job in jobs if job["id"] in keyed]
    assert (group["first_at"], group["last_at"]) == (min(times), max(times))
    assert (found[ZERO_AT]["exception"], found[ZERO_AT]["jobs"]) == ("ZeroDivisionError", odd)
    assert len(found) == 3
    assert sorted(search(api, group=group["group"], limit=5)) == sorted(keyed)
    (folder / "mended").touch()
    assert retry(api, group["group"]) == {"retried": 13, "left": {}}
    again = ended(api, *keyed)
    assert {job["result"] for job in again} == {"mended"}
    assert {job["attempts"] for job in again} == {1}
    assert {one["where"] for one in groups(api)} == found.keys() - {KEY_ERROR_AT}
    assert retry(api, group["group"]) == {"retried": 0, "left": {}}


def test_the_sdk_lists_and_retries(api: ApiServer, folder: Path) -> None:
    ids = submit(api, {}, {}, metadata={"batch": "night"})
    ended(api, *ids)
    with Client(api.url) as client:
        (group,) = client.failures("orders")
        assert client.failures("fake") == []
        assert client.failures(error="ZeroDivision") == []
        assert client.failures(since=datetime.now(UTC) + timedelta(hours=1)) == []
        assert (group.count, group.where, sorted(group.jobs)) == (2, KEY_ERROR_AT, sorted(ids))
        assert {job.id for job in client.jobs(group=group.group)} == set(ids)
        assert {job.id for job in client.jobs(metadata={"batch": "night"})} == set(ids)
        (folder / "mended").touch()
        done = client.retry_failures(group.group)
        assert (done.retried, done.left) == (2, {})
        assert client.result(ids[0], timeout_s=60) == "mended"
        assert client.failures("orders", error="KeyError") == []


def fail(server: RedisServer, count: int) -> None:
    """Fail jobs of `fake` as a worker does."""
    with server.client() as client:
        claimed = claim(client, "fake", count)
        assert len(claimed) == count
        settle(client, "fake", claimed, [failure("handler-error", "no")] * count)


def test_a_kill_during_a_retry_loses_and_doubles_nothing(
    api: ApiServer, server: RedisServer, models: Path
) -> None:
    count = 3000
    ids = submit(api, *({"n": n} for n in range(count)), model="fake")
    for _ in range(count // 500):
        fail(server, 500)
    (group,) = groups(api, model="fake")
    assert group["count"] == count
    with api_process(server.url, models) as victim, server.client() as client:
        path = f"{victim.url}{FAILURES}/{group['group']}/retry"

        def ask() -> None:
            # On a fast machine it may be answered before the kill.
            with suppress(httpx2.TransportError):
                httpx2.post(path, timeout=60, verify=PLAIN)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: client.llen("headrace.fake") > 0, "the retry has begun")
        victim.kill()
        asking.join()
        moved = client.llen("headrace.fake")
        left = client.zcard(keys.failures("fake"))
        assert moved + left == count
        assert retry(api, group["group"])["retried"] == left
        seen: Counter[str] = Counter()
        while claimed := claim(client, "fake", 500):
            seen.update(message.id for message, _ in claimed)
            settle(client, "fake", claimed, [echo(message) for message, _ in claimed])
        assert seen == Counter(ids)
        assert groups(api, model="fake") == []


def test_search(api: ApiServer, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_by_one(count: int, metadata: dict[str, Any]) -> list[str]:
        return [submit(api, n, model="fake", metadata=metadata)[0] for n in range(count)]

    first = one_by_one(2, {"customer": 42, "city": "Zürich"})
    second = one_by_one(3, {"customer": "42", "more": {"a": 420}})
    third = one_by_one(1, {"customer": 420})
    with server.client() as client:
        claimed = claim(client, "fake", 3)
        answers = [failure("handler-error", 'a "quoted" reason'), Answer(), failure("timeout", "x")]
        settle(client, "fake", claimed, answers)
    # 420 begins as 42 does, and costs the page no place.
    page = api.http.get(JOBS, params={"metadata": "customer=42", "limit": 1}).json()["jobs"]
    assert [job["id"] for job in page] == second[-1:]
    failed = [first[0], second[0]]
    for stretch in (500, 2):
        monkeypatch.setattr(listing, "CALL_JOBS", stretch)
        monkeypatch.setattr(listing, "PAGE_JOBS", 4)
        monkeypatch.setattr(failing, "PORTION", stretch)
        assert search(api, metadata="customer=42") == (first + second)[::-1]
        assert search(api, metadata='customer="42"') == second[::-1]
        assert search(api, metadata="customer=42,city=Zürich") == first[::-1]
        assert search(api, metadata='more={"a":420}') == second[::-1]
        assert search(api, metadata="customer=4") == []
        assert search(api, metadata="more") == second[::-1]
        assert search(api, metadata='{"city":"Zürich"}') == first[::-1]
        assert search(api, id=first[1]) == [first[1]]
        assert search(api, id=first[1], status="failed") == []
        assert search(api, status="failed") == failed[::-1]
        assert search(api, status="failed,succeeded") == [second[0], first[1], first[0]]
        assert search(api, error="QUOTED") == [first[0]]
        assert search(api, error='"quoted" r') == [first[0]]
        assert search(api, error="o", metadata="customer=42", limit=1) == failed[::-1]
        assert search(api, error="timeout", model="orders") == []
    page = api.http.get(JOBS, params={"id": third[0]}).json()["jobs"]
    assert search(api, until=page[0]["created_at"], model="fake") == (first + second)[::-1]
    assert search(api, since=page[0]["created_at"], model="fake") == third
    for query in (
        {"id": ""}, {"until": "soon"}, {"mode": "x"}, {"group": "fake"}, {"group": "fake.zzz"},
        {"metadata": '{"city":"Z'}, {"metadata": "=42"}, {"metadata": ","},
    ):  # fmt: skip
        assert api.http.get(JOBS, params=query).status_code == 400, query
    for group in ("fake", "fake.0123456789ag"):
        refused = api.http.post(f"{FAILURES}/{group}/retry")
        assert refused.status_code == 400
        assert "is not the name of a group" in refused.json()["detail"]
    with server.client() as client:
        claimed = claim(client, "fake", 10)
        settle(client, "fake", claimed, [Answer()] * len(claimed))


def test_a_key_sees_its_own_failures_and_only_manage_retries(
    server: RedisServer, models: Path
) -> None:
    with api_server(server.url, load_catalog(models), auth="on") as secured:
        users = [make_key(server), make_key(server)]
        _, manager = make_key(server, *Scope)

        def ask(key: str, path: str, method: str = "GET", **options: Any) -> httpx2.Response:
            url = f"{secured.url}{path}"
            return httpx2.request(
                method, url, headers=bearer(key), timeout=60, **options, verify=PLAIN
            )

        ids = []
        for _, key in users:
            body = {"model": "fake", "input": 1}
            ids.append(ask(key, JOBS, "POST", json=body).json()["id"])
        fail(server, 2)
        for (key_id, key), job_id in zip(users, ids, strict=True):
            (group,) = ask(key, FAILURES).json()["failures"]
            assert (group["count"], group["jobs"]) == (1, [job_id])
            for query in ("", f"key={key_id}", f"group={group['group']}", "error=no"):
                found = ask(key, f"{JOBS}?model=fake&{query}").json()["jobs"]
                assert [job["id"] for job in found] == [job_id], query
            assert ask(key, f"{FAILURES}/{group['group']}/retry", "POST").status_code == 403
        stranger = ask(users[0][1], f"{JOBS}?key={users[1][0]}&status=failed").json()
        assert stranger == {"jobs": [], "cursor": None}
        (group,) = ask(manager, FAILURES).json()["failures"]
        assert group["count"] == 2
        by_key = ask(manager, f"{JOBS}?key={users[1][0]}&error=no").json()["jobs"]
        assert [job["id"] for job in by_key] == ids[1:]
        retried = ask(manager, f"{FAILURES}/{group['group']}/retry", "POST").json()
        assert retried == {"retried": 2, "left": {}}
    with server.client() as client:
        claimed = claim(client, "fake", 2)
        settle(client, "fake", claimed, [Answer()] * 2)


def test_a_server_without_failures_has_no_list_of_them(server: RedisServer, models: Path) -> None:
    with api_server(server.url, load_catalog(models), failures_max=0) as api:
        for response in (api.http.get(FAILURES), api.http.post(f"{FAILURES}/orders.0/retry")):
            assert (response.status_code, response.json()["type"]) == (404, "/problems/lists-off")
        assert api.http.get(JOBS, params={"status": "failed"}).status_code == 200
        assert api.http.get(JOBS, params={"error": "x"}).status_code == 404


def test_the_command_lists_and_retries(api: ApiServer, folder: Path, tmp_path: Path) -> None:
    ids = submit(api, {}, {}, metadata={"batch": "day"})
    ended(api, *ids)
    (group,) = groups(api, model="orders")
    shown = headrace_here("jobs", "--group", "error", "--url", api.url, cwd=tmp_path).stdout
    assert KEY_ERROR_AT in shown
    assert group["group"] in shown
    searched = ("--metadata", "batch=day", "--error", "customer_id", "--group", group["group"])
    listed = headrace_here("jobs", *searched, "--url", api.url, cwd=tmp_path).stdout
    assert all(job_id in listed for job_id in ids)
    (folder / "mended").touch()
    done = headrace_here("retry", group["group"], "--url", api.url, cwd=tmp_path)
    assert "2 retried" in done.stdout
    assert {job["status"] for job in ended(api, *ids)} == {"succeeded"}


def test_one_failed_job_shows_its_input_and_is_retried(api: ApiServer, folder: Path) -> None:
    large = {"text": "x" * 5000}  # in the payload store: the limit in a message is 1,000 bytes
    failed, stored, other = submit(api, {"order": 7}, large, {"customer_id": 1})
    ended(api, failed, stored, other)
    answer = api.http.get(f"{JOBS}/{failed}/input")
    assert (answer.json(), answer.headers["content-type"]) == ({"order": 7}, "application/json")
    assert api.http.get(f"{JOBS}/{stored}/input").json() == large
    gone = api.http.get(f"{JOBS}/{other}/input")
    assert (gone.status_code, gone.json()["type"]) == (410, "/problems/input-gone")
    assert api.http.post(f"{JOBS}/{other}/retry").status_code == 409
    (folder / "mended").touch()
    assert api.http.post(f"{JOBS}/{failed}/retry").json() == {"retried": 1, "left": {}}
    mended, unchanged = ended(api, failed, stored)
    assert (mended["result"], unchanged["status"]) == ("mended", "failed")


def test_the_input_of_a_job_is_there_until_it_ends(api: ApiServer, server: RedisServer) -> None:
    first, second, later = (
        api.http.post(JOBS, json={"model": "fake", "input": {"n": n}, "options": options}).json()
        for n, options in enumerate(({}, {}, {"countdown": 3600}))
    )
    cancelled = submit(api, {"n": 3}, model="fake")[0]
    ids = [job["id"] for job in (first, second, later)]

    def given(job_id: str) -> Any:
        answer = api.http.get(f"{JOBS}/{job_id}/input")
        return answer.json() if answer.status_code == 200 else answer.json()["detail"]

    assert [given(job_id) for job_id in ids] == [{"n": 0}, {"n": 1}, {"n": 2}]
    api.http.delete(f"{JOBS}/{cancelled}")
    with server.client() as client:
        claimed = claim(client, "fake", 1)
        assert given(ids[0]) == {"n": 0}, "it runs"
        assert given(ids[1]) == {"n": 1}, "its place has changed"
        settle(client, "fake", claimed, [Answer()])
        settle(client, "fake", claim(client, "fake", 1), [failure("handler-error", "no")])
    assert given(ids[1]) == {"n": 1}
    assert given(ids[0]).endswith("was deleted when the job ended as succeeded")
    assert given(cancelled).endswith("was deleted when the job ended as cancelled")
    with Client(api.url) as sdk:
        assert sdk.job_input(later["id"]) == {"n": 2}
        with pytest.raises(InputGone):
            sdk.job_input(ids[0])
        sdk.cancel(later["id"])
        with pytest.raises(Conflict):
            sdk.retry(ids[0])
        sdk.retry(ids[1])
        assert sdk.status(ids[1]).status == "queued"
        sdk.cancel(ids[1])


def test_an_input_is_that_of_the_job_wherever_its_message_is(
    api: ApiServer, server: RedisServer
) -> None:
    """Messages that go back to their queue one by one are not where their tickets say."""
    named = "order-7"
    api.http.put(f"{JOBS}/{named}", json={"model": "fake", "input": {"n": "named"}})
    (other,) = submit(api, {"n": "secret"}, model="fake", metadata={"id": named})
    ids = [named, other, *submit(api, {"n": 2}, model="fake")]
    try:
        with server.client() as client:
            for message, token in claim(client, "fake", 2):
                leased = Held(message.id, token)
                release = scripts.release(keys.queue_name("fake"), "free", "3", [leased])
                call_script(client, release)
                shown = [api.http.get(f"{JOBS}/{job_id}/input").json() for job_id in ids]
                assert shown == [{"n": "named"}, {"n": "secret"}, {"n": 2}]
    finally:
        for job_id in ids:
            api.http.delete(f"{JOBS}/{job_id}")


def test_the_commands_print_an_input_and_retry_one_job(api: ApiServer, tmp_path: Path) -> None:
    failed, done = submit(api, {"order": 7}, {"customer_id": 1})
    ended(api, failed, done)

    def run(*arguments: str) -> tuple[int, str]:
        made = headrace_here(*arguments, "--url", api.url, cwd=tmp_path)
        return made.returncode, made.stdout + made.stderr

    assert run("input", failed) == (0, '{"order":7}\n')
    assert run("input", failed, "-o", "given.json") == (0, "")
    assert (tmp_path / "given.json").read_text() == '{"order":7}\n'
    code, text = run("input", done)
    assert (code, "was deleted when the job ended" in text) == (ExitCode.FAILED, True)
    assert run("retry", failed) == (0, f"{failed}  retried\n")
    code, text = run("retry", done, "nobody")
    assert (code, "has not failed" in text, "nobody" in text) == (ExitCode.UNKNOWN_ID, True, True)
    ended(api, failed)


def test_a_failed_job_whose_message_is_not_kept_says_so(api: ApiServer) -> None:
    lines = ndjson([{"model": "orders", "input": {}}])
    job_id = str(api.http.post(f"{BULK}?quiet=1", content=lines).json()["id"])
    ended(api, job_id)
    for answer, status in (
        (api.http.get(f"{JOBS}/{job_id}/input"), 410),
        (api.http.post(f"{JOBS}/{job_id}/retry"), 409),
    ):
        assert (answer.status_code, "quiet" in answer.text) == (status, True)
        assert "no longer failed" not in answer.text


def test_an_input_that_cannot_be_decoded_is_shown_as_it_is(
    api: ApiServer, server: RedisServer
) -> None:
    broken = {"content_type": "image/png", "base64": "!!"}
    (failed,) = submit(api, broken)
    with stock_client(server.url) as celery:
        sent = send(celery, "orders", {"order": float("nan")}).id
        wait_until(lambda: api.http.get(f"{JOBS}/{sent}").is_success, "it is claimed")
    ended(api, failed, sent)
    with Client(api.url) as sdk:
        assert sdk.job_input(failed) == broken
        assert sdk.job_input(sent) == {"order": None}


def test_the_input_of_bytes_has_its_content_type(api: ApiServer) -> None:
    answer = api.http.post(
        "/api/v1/models/orders/jobs", content=b"\x89PNG", headers={"content-type": "image/png"}
    )
    job_id = answer.json()["id"]
    ended(api, job_id)
    given = api.http.get(f"{JOBS}/{job_id}/input")
    assert (given.content, given.headers["content-type"]) == (b"\x89PNG", "image/png")
    assert "sandbox" in given.headers["content-security-policy"]


def _entries(redis: Any) -> list[bytes]:
    found: list[bytes] = redis.zrange(keys.failures("orders"), 0, -1)
    return found


def test_a_group_is_counted_over_time_and_discarded_only_as_it_was_seen(
    api: ApiServer, server: RedisServer
) -> None:
    first, *others = submit(api, {}, {}, {"odd": 1, "zero": 0})
    ended(api, first, *others)
    with Client(api.url) as client, server.client() as redis:
        entries = {raw.decode().rpartition(" ")[2]: raw for raw in _entries(redis)}
        redis.zincrby(keys.failures("orders"), -7200 * 1e6, entries[first])
        counted = {group.where: group for group in client.failures("orders", bucket_s=3600)}
        assert len(counted[KEY_ERROR_AT].over_time) == 2
        assert {where: sum(group.over_time.values()) for where, group in counted.items()} == {
            KEY_ERROR_AT: 2, ZERO_AT: 1,
        }  # fmt: skip
        assert all(time.endswith(":00:00.000000+00:00") for time in counted[ZERO_AT].over_time)
        assert client.failures("orders")[0].over_time == {}
        assert api.http.get(FAILURES, params={"bucket_s": 59}).status_code == 400
        seen = counted[KEY_ERROR_AT]
        (late,) = submit(api, {})
        ended(api, late)
        path = f"{FAILURES}/{seen.group}"
        for verb in ("discard", "retry"):
            refused = api.http.post(f"{path}/{verb}", json={"count": 2})
            assert refused.status_code == 409
            assert "has 3 failures by now, and not 2" in refused.json()["detail"]
        assert api.http.post(f"{path}/discard").status_code == 400, "a count is needed"
        assert client.discard_failures(seen.group, 3) == 3
        assert [group.where for group in client.failures("orders")] == [ZERO_AT]
        assert client.status(late).status == "failed"
        assert api.http.post(f"{path}/discard", json={"count": 0}).json() == {"discarded": 0}
        left = client.failures("orders")[0]
        assert client.discard_failures(left) == 1
        assert client.failures("orders") == []
        audited = [(entry.action, entry.detail) for entry in client.audit(limit=3)]
        assert audited[0] == ("discard_failures", "1 failures discarded")
