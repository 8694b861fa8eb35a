"""Dead letters over HTTP, of jobs that a real worker gave up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headrace import Client, errors
from headrace.redis import keys
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.clients.messages import write_message
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.fakes.proxy import proxy
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

LETTERS = "/api/v1/models/tricky/dead-letters"


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("letters")
    tricky = {"handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky"}
    with shared_deployment.site(folder, {"tricky": tricky}) as running:
        yield running


@pytest.fixture
def server(site: Site) -> RedisServer:
    return site.redis


@pytest.fixture
def api(site: Site) -> Iterator[ApiServer]:
    yield site.api
    site.api.http.post("/api/v1/queues/headrace.tricky/resume").raise_for_status()
    site.api.http.post(f"{LETTERS}/purge", json={"all": True}).raise_for_status()


def run(api: ApiServer, value: Any, **options: Any) -> dict[str, Any]:
    """A job's object, once it has ended."""
    response = api.http.post(
        "/api/v1/jobs",
        json={"model": "tricky", "input": value, "options": options},
        headers={"Prefer": "wait=30"},
    )
    assert response.status_code == 200, response.text
    job: dict[str, Any] = response.json()
    return job


def listed(api: ApiServer, **query: Any) -> dict[str, Any]:
    response = api.http.get(LETTERS, params=query)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def test_a_job_whose_retries_are_used_up(api: ApiServer) -> None:
    job = run(api, {"do": "transient"}, max_retries=0, metadata={"of": "me"})
    assert (job["status"], job["dead_lettered"]) == ("failed", True)
    (letter,) = listed(api)["dead_letters"]
    assert (letter["id"], letter["job_id"], letter["requeueable"]) == (job["id"], job["id"], True)
    assert (letter["reason"], letter["error"]) == ("transient-error", "try again")
    assert (letter["attempts"], letter["created_at"]) == (1, job["created_at"])
    assert letter["died_at"] > letter["created_at"]
    whole = api.http.get(f"{LETTERS}/{job['id']}").json()
    assert 'raise TransientError("try again")' in whole["traceback"]
    assert job["id"] in whole["message"]["text"]
    assert whole.items() >= letter.items()


def test_a_requeued_job_runs_under_its_id_with_its_input(api: ApiServer) -> None:
    job = run(api, {"do": "transient"}, max_retries=0, metadata={"of": "me"})
    before = listed(api)["dead_letters"][0]
    answer = api.http.post(f"{LETTERS}/requeue", json={"ids": [job["id"], "nobody"]}).json()
    assert answer == {"requeued": 1, "left": {"nobody": "unknown"}}

    def died_again() -> bool:
        letters = listed(api)["dead_letters"]
        return bool(letters) and letters[0]["died_at"] > before["died_at"]

    wait_until(died_again, "it ran and died again")
    again = api.http.get(f"/api/v1/jobs/{job['id']}").json()
    assert (again["status"], again["attempts"], again["metadata"]) == ("failed", 1, {"of": "me"})


def test_a_job_that_kills_its_process_and_a_message_that_is_none(
    api: ApiServer, server: RedisServer
) -> None:
    job = run(api, {"do": "exit"}, max_retries=0)
    assert (job["error"]["type"], job["dead_lettered"]) == ("replica-lost", True)
    with server.client() as client:
        client.lpush("headrace.tricky", b"\xff\xfe no job")
    wait_until(lambda: len(listed(api)["dead_letters"]) == 2, "the message was refused")
    refused, killer = listed(api)["dead_letters"]
    assert (refused["reason"], refused["job_id"], refused["requeueable"]) == (
        "not-json",
        None,
        False,
    )
    assert killer["reason"] == "replica-lost"
    assert api.http.get(f"{LETTERS}/{refused['id']}").json()["message"] == {
        "base64": "//4gbm8gam9i"
    }
    answer = api.http.post(f"{LETTERS}/requeue", json={"ids": [refused["id"]]}).json()
    assert answer == {"requeued": 0, "left": {refused["id"]: "unreadable"}}
    assert api.http.delete(f"{LETTERS}/{refused['id']}").json() == {"purged": 1}
    gone = api.http.delete(f"{LETTERS}/{refused['id']}")
    assert (gone.status_code, gone.json()["type"]) == (404, "/problems/letter-not-found")
    assert api.http.get("/api/v1/queues").json()["queues"][0]["dead_letters"] == 1


def test_a_message_that_begins_and_ends_as_ours_and_is_broken_between(
    api: ApiServer, server: RedisServer
) -> None:
    queue = "headrace.tricky"
    head, middle, tail = write_message("forged", "tricky", queue, b"1").partition(b'"properties"')
    forged = head + b"}{\xff" + middle + tail
    with server.client() as client:
        client.lpush(queue, forged)
        wait_until(lambda: listed(api)["dead_letters"], "it is a dead letter")
        raw: Any = client.hget(keys.dead_letter(queue, "forged"), "raw")
    assert raw == forged
    (letter,) = listed(api)["dead_letters"]
    assert (letter["job_id"], letter["reason"]) == ("forged", "invalid-request")
    assert letter["error"].startswith("the task message cannot be read: ")
    job = api.http.get("/api/v1/jobs/forged").json()
    assert (job["status"], job["dead_lettered"]) == ("failed", True)
    assert api.http.get(f"{LETTERS}/forged").json()["message"]


def test_all_of_them(api: ApiServer, server: RedisServer) -> None:
    jobs = [run(api, {"do": "transient", "n": n}, max_retries=0)["id"] for n in range(3)]
    pages = [listed(api, limit=2)]
    pages.append(listed(api, limit=2, cursor=pages[0]["cursor"]))
    assert [letter["id"] for page in pages for letter in page["dead_letters"]] == jobs[::-1]
    assert pages[1]["cursor"] is None
    answer = api.http.post(f"{LETTERS}/requeue", json={"all": True}).json()
    assert answer == {"requeued": 3, "left": {}}
    wait_until(lambda: len(listed(api)["dead_letters"]) == 3, "they died again")
    assert api.http.post(f"{LETTERS}/purge", json={"all": True}).json() == {"purged": 3}
    assert listed(api) == {"dead_letters": [], "cursor": None}
    with server.client() as client:
        left: Any = client.keys(keys.dead_letter("headrace.tricky", "*"))
        assert left == []


@pytest.mark.parametrize(
    ("verb", "path", "body", "detail"),
    [
        ("GET", "?limit=0", None, "limit: '0' is not valid"),
        ("GET", "?limit=x", None, "limit"),
        ("GET", "?cursor=zz", None, "'zz' is not a cursor of this API"),
        ("POST", "/requeue", b"{}", 'either "ids" or "all"'),
        ("POST", "/requeue", b'{"ids": [], "all": true}', 'either "ids" or "all"'),
        ("POST", "/purge", b'{"ids": "all"}', "member ids: expected"),
        ("POST", "/purge", b'{"id": ["x"]}', "unknown member 'id'"),
        ("POST", "/purge", b'{"ids": [' + b'"x",' * 10_000 + b'"x"]}', "length <= 10000"),
    ],
)
def test_bad_requests(
    api: ApiServer, verb: str, path: str, body: bytes | None, detail: str
) -> None:
    response = api.http.request(verb, LETTERS + path, content=body)
    assert (response.status_code, response.json()["type"]) == (400, "/problems/invalid-request")
    assert detail in response.json()["detail"]


def test_letters_of_no_model(api: ApiServer) -> None:
    response = api.http.get("/api/v1/models/trickx/dead-letters")
    assert (response.status_code, response.json()["type"]) == (404, "/problems/model-not-found")


def dead(client: Any, count: int, **fields: Any) -> list[str]:
    """Ids of so many jobs whose retries are used up, in the order of their deaths."""
    ids = []
    for number in range(count):
        value = {"do": "transient", "n": number, **fields}
        job = client.wait(client.submit("tricky", value, max_retries=0))
        assert job.dead_lettered
        ids.append(job.id)
    return ids


@pytest.mark.parametrize("shell", SHELLS)
def test_the_client_lists_them_over_pages_and_shows_one(
    api: ApiServer, server: RedisServer, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.calls.PAGE", 2)
    with client_of(shell, api.url) as client:
        ids = dead(client, 5)[::-1]
        assert [letter.id for letter in client.dead_letters("tricky")] == ids
        assert [letter.id for letter in client.dead_letters("tricky", limit=3)] == ids[:3]
        assert list(client.dead_letters("tricky", limit=0)) == []
        first = next(iter(client.dead_letters("tricky")))
        assert (first.model, first.job_id, first.requeueable) == ("tricky", ids[0], True)
        assert (first.reason, first.error, first.attempts) == ("transient-error", "try again", 1)
        assert first.created_at < first.died_at
        assert (first.traceback, first.message) == (None, None)
        whole = client.dead_letter("tricky", ids[0])
        assert 'raise TransientError("try again")' in whole.traceback
        headers = msgspec.json.decode(whole.raw)["headers"]
        assert headers["id"] == ids[0]
        with server.client() as redis:
            redis.lpush("headrace.tricky", b"\xff\xfe no job")
        wait_until(lambda: len(listed(api)["dead_letters"]) == 6, "the message was refused")
        refused = client.dead_letter("tricky", next(iter(client.dead_letters("tricky"))).id)
        assert (refused.raw, refused.job_id, refused.requeueable) == (
            b"\xff\xfe no job",
            None,
            False,
        )


@pytest.mark.parametrize("shell", SHELLS)
def test_the_client_puts_back_and_removes_one_some_or_all(
    api: ApiServer, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.admin.DEAD_LETTERS_AT_ONCE", 2)
    with client_of(shell, api.url) as client:
        ids = dead(client, 4)
        before = {letter.id: letter.died_at for letter in client.dead_letters("tricky")}
        one = client.dead_letter("tricky", ids[0])
        done = client.requeue_dead_letters("tricky", [one, *ids[:3], "nobody"])
        assert (done.requeued, done.left) == (3, {"nobody": "unknown"})

        def again(*chosen: str) -> bool:
            found = {letter.id: letter.died_at for letter in client.dead_letters("tricky")}
            return all(found.get(job_id, before[job_id]) > before[job_id] for job_id in chosen)

        wait_until(lambda: again(*ids[:3]), "they ran and died again")
        assert client.dead_letter("tricky", ids[3]).died_at == before[ids[3]]
        assert client.requeue_dead_letters("tricky", ids[3]).requeued == 1
        wait_until(lambda: again(*ids), "the last one did too")
        assert client.requeue_dead_letters("tricky", all=True).requeued == 4
        wait_until(lambda: len(list(client.dead_letters("tricky"))) == 4, "all did")
        assert client.purge_dead_letters("tricky", [*ids[:3], "nobody"]) == 3
        assert [letter.id for letter in client.dead_letters("tricky")] == ids[3:]
        assert client.purge_dead_letters("tricky", all=True) == 1
        assert client.purge_dead_letters("tricky", all=True) == 0
        assert client.status(ids[0]).status == "failed"


def test_of_an_answer_that_was_lost_the_repeat_finds_nothing_left_to_do(api: ApiServer) -> None:
    with proxy(int(api.url.rpartition(":")[2])) as carrier, Client(api.url) as direct:
        first, second = dead(direct, 2)
        direct.pause_queue("tricky")
        with Client(f"http://127.0.0.1:{carrier.port}") as client:
            carrier.lose_answer_to(b"/dead-letters/requeue")
            done = client.requeue_dead_letters("tricky", first)
            assert (done.requeued, done.left) == (0, {first: "unknown"})
            assert client.status(first).status == "queued"
            carrier.lose_answer_to(b"/dead-letters/purge")
            assert client.purge_dead_letters("tricky", second) == 0
            assert list(client.dead_letters("tricky")) == []
            carrier.lose_answer_to(b"/queues/headrace.tricky/purge")
            assert client.purge_queue("tricky") == 0
            assert client.status(first).status == "cancelled"
            carrier.lose_answer_to(b"/queues/headrace.tricky/resume")
            client.resume_queue("tricky")
        assert carrier.lost == 4
        assert not direct.queues()[0].paused


def test_what_the_client_cannot_do_with_them(api: ApiServer) -> None:
    with Client(api.url) as client:
        for call in (client.requeue_dead_letters, client.purge_dead_letters):
            with pytest.raises(errors.InvalidRequest, match="no dead letters are given"):
                call("tricky")
            with pytest.raises(errors.InvalidRequest, match="letters and all are both given"):
                call("tricky", ["a"], all=True)
            with pytest.raises(errors.ModelNotFound):
                call("trickx", "x")
        assert client.requeue_dead_letters("tricky", []).requeued == 0
        with pytest.raises(errors.ModelNotFound):
            next(client.dead_letters("a b"))
        with pytest.raises(errors.LetterNotFound, match="no dead letter 'a b/c'"):
            client.dead_letter("tricky", "a b/c")
