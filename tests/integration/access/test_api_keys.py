"""API keys at a real API: who gets in, what for, and whose jobs exist for whom."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from threading import Event
from typing import Any

import httpx2
import pytest

from api.auth import authenticator
from api.auth.authenticator import Needs, Open
from api.extension import operations
from extensions.openai.batches.runner import internal_key
from headrace.access.api_key import Caller, Scope
from headrace.access.key_store import ApiKeyStore
from headrace.config.inputs.input_schema import InputSection
from headrace.jobs.ids import callback_id, id_of_key
from headrace.redis import keys
from tests.harness.clients.access import ALL, USER, bearer, http_as, in_flight, make_key, revoke_key
from tests.harness.clients.script_calls import Queue, foreign
from tests.harness.fakes.worker import Answer, claim, settle
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"
ECHO_JOBS = "/api/v1/models/echo/jobs"
BODY = {"model": "echo", "input": {"x": 1}}
#: A bucket that is empty after one request and fills in a quarter of an hour.
HARDLY_ANY = 0.001
API_SETTINGS = {"auth": "on"}


@pytest.fixture
def alice(api: ApiServer, redis_db: RedisServer) -> Iterator[httpx2.Client]:
    with http_as(api, make_key(redis_db)[1]) as http:
        yield http


@pytest.fixture
def bob(api: ApiServer, redis_db: RedisServer) -> Iterator[httpx2.Client]:
    with http_as(api, make_key(redis_db)[1]) as http:
        yield http


@pytest.fixture
def chief(api: ApiServer, redis_db: RedisServer) -> Iterator[httpx2.Client]:
    with http_as(api, make_key(redis_db, *ALL)[1]) as http:
        yield http


def end_all(server: RedisServer, result: bytes = b'"done"') -> list[str]:
    with server.client() as client:
        claimed = claim(client, "echo")
        settle(client, "echo", claimed, [Answer(result=result)] * len(claimed))
    return [message.id for message, _ in claimed]


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    said: dict[str, Any] = response.json()
    if isinstance(said.get("error"), str):
        # As the clients of Triton and TensorFlow Serving read it: a text without a code.
        assert said["error"]
    elif "error" in said:
        # Below /v1/ errors are as OpenAI's API writes them.
        expected = {"unauthorized": "invalid_api_key"}.get(code, code)
        assert said["error"]["code"] == expected
    else:
        assert said["type"] == f"/problems/{code}"
    return said


def test_who_has_no_good_key_is_turned_away(api: ApiServer, redis_db: RedisServer) -> None:
    key_id, key = make_key(redis_db)
    _, other = make_key(redis_db)
    expired = make_key(redis_db, expires_in_s=1e-6)[1]
    stolen = f"hr_{key_id}_{other[-43:]}"
    unknown = "hr_000000000000_" + "a" * 43
    assert api.http.get(f"{JOBS}/x").status_code == 401
    for bad in ("hr_x_y", "nonsense", f"{key[:-1]}!", stolen, expired, unknown):
        for headers in (bearer(bad), {"x-api-key": bad}, {"authorization": f"Basic {bad}"}):
            response = api.http.get(f"{JOBS}/x", headers=headers)
            said = problem(response, 401, "unauthorized")
            assert response.headers["www-authenticate"] == 'Bearer realm="headrace"'
            assert bad not in json.dumps(said), "no key is ever repeated"
    problem(api.http.post(JOBS, json=BODY), 401, "unauthorized")
    problem(api.http.get("/no/such/path"), 401, "unauthorized")
    problem(api.http.patch(f"{JOBS}/x"), 401, "unauthorized")
    for good in (bearer(key), {"x-api-key": key}, {"authorization": f"bearer  {key}"}):
        problem(api.http.get(f"{JOBS}/x", headers=good), 404, "job-not-found")
    problem(api.http.get("/no/such/path", headers=bearer(key)), 404, "not-found")
    problem(api.http.patch(f"{JOBS}/x", headers=bearer(key)), 405, "method-not-allowed")
    # httpx sends no blanks behind a value; others do.
    with closing(HTTPConnection(str(api.http.base_url.host), api.http.base_url.port)) as plain:
        plain.request("GET", f"{JOBS}/x", headers={"X-API-Key": f" {key} "})
        assert plain.getresponse().status == 404


def path_of(template: str) -> str:
    names = {"model": "echo", "name": "headrace.echo", "code": "queue-full", "file": "docs.css"}
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: names.get(found[1], "x"), template)


def test_a_key_opens_the_routes_of_its_scopes_and_no_other(
    api: ApiServer, redis_db: RedisServer
) -> None:
    keys = {scope: make_key(redis_db, scope)[1] for scope in Scope}

    def allowed(needs: Needs, scope: Scope | None) -> bool:
        of_any_key = needs in (Open.METRICS, Open.ANY_KEY)
        return needs in (scope, Open.ALWAYS, Open.DOCS) or (of_any_key and bool(scope))

    for method, template, _, needs, *_ in operations():
        for scope in (None, *Scope):
            headers = bearer(keys[scope]) if scope is not None else {}
            answer = api.http.request(method, path_of(template), headers=headers)
            turned_away = answer.status_code in (401, 403)
            assert turned_away != allowed(needs, scope), (method, template, scope, answer.text)
            if turned_away:
                problem(answer, 403 if scope else 401, "forbidden" if scope else "unauthorized")
    assert in_flight(redis_db) == {}


def test_a_job_of_another_key_does_not_exist(
    api: ApiServer,
    alice: httpx2.Client,
    bob: httpx2.Client,
    chief: httpx2.Client,
    redis_db: RedisServer,
) -> None:
    path = f"{JOBS}/mine"
    assert alice.put(path, json=BODY).status_code == 202
    none = problem(bob.get(f"{JOBS}/none"), 404, "job-not-found")
    for method, below in (("GET", ""), ("GET", "/result"), ("GET", "?wait=1"), ("DELETE", "")):
        said = problem(bob.request(method, path + below), 404, "job-not-found")
        assert said["detail"] == none["detail"].replace("none", "mine"), "as if it never was"
    problem(bob.put(path, json=BODY), 404, "job-not-found")
    problem(bob.put(path, json={**BODY, "input": 2}), 404, "job-not-found")
    problem(bob.post(JOBS, json={**BODY, "id": "mine"}, params={"wait": 1}), 404, "job-not-found")
    large = {**BODY, "id": "mine", "input": "x" * 50_000}
    problem(bob.post(JOBS, json=large), 404, "job-not-found")
    lines = json.dumps({**BODY, "id": "mine"}) + "\n" + json.dumps(BODY) + "\n"
    refused, taken = bob.post(f"{JOBS}/bulk", content=lines).text.splitlines()
    assert json.loads(refused)["error"]["status"] == 404
    own = json.loads(taken)["id"]
    ids = {"ids": ["mine", own]}
    seen = bob.post(f"{JOBS}/status", json=ids).json()["jobs"]
    assert (seen[0], seen[1]["id"]) == (None, own)
    assert [job["id"] for job in bob.get(JOBS).json()["jobs"]] == [own]
    assert [job["id"] for job in alice.get(JOBS).json()["jobs"]] == ["mine"]
    assert len(chief.get(JOBS).json()["jobs"]) == 2
    cancelled = bob.post(f"{JOBS}/cancel", json=ids).json()["jobs"]
    assert (cancelled[0], cancelled[1]["outcome"]) == (None, "removed")

    assert alice.get(path).json()["status"] == "queued", "nobody has touched it"
    assert end_all(redis_db) == ["mine"]
    assert alice.get(f"{path}/result").json() == "done"
    assert chief.get(f"{path}/result").json() == "done"
    problem(bob.get(f"{path}/result"), 404, "job-not-found")
    problem(bob.get(path), 404, "job-not-found")
    assert chief.put(path, json=BODY).headers["idempotency-replayed"] == "true"
    assert in_flight(redis_db) == {}


def test_an_idempotency_key_is_the_api_keys_own(
    alice: httpx2.Client, bob: httpx2.Client, redis_db: RedisServer
) -> None:
    headers = {"idempotency-key": "order-7"}
    ids = [http.post(JOBS, json=BODY, headers=headers).json()["id"] for http in (alice, alice, bob)]
    assert ids[0] == ids[1] != ids[2]
    bulk = [
        http.post(f"{JOBS}/bulk", content=json.dumps(BODY), headers=headers).json()["id"]
        for http in (alice, alice, bob)
    ]
    assert bulk[0] == bulk[1] != bulk[2]
    assert len(end_all(redis_db)) == 4


def test_a_stock_clients_job_is_nobodys_and_seen_by_manage_alone(
    alice: httpx2.Client, chief: httpx2.Client, redis_db: RedisServer
) -> None:
    with redis_db.client() as client:
        Queue(client, "echo").push(foreign(headers={"id": "stock-1"}))
    assert end_all(redis_db) == ["stock-1"]
    problem(alice.get(f"{JOBS}/stock-1"), 404, "job-not-found")
    problem(alice.put(f"{JOBS}/stock-1", json=BODY), 404, "job-not-found")
    assert chief.get(f"{JOBS}/stock-1").json()["status"] == "succeeded"


def test_a_key_has_so_many_jobs_in_flight_and_no_more(
    api: ApiServer, redis_db: RedisServer
) -> None:
    key_id, key = make_key(redis_db, in_flight=3)
    with http_as(api, key) as http:
        for n in range(2):
            assert http.put(f"{JOBS}/job-{n}", json=BODY).status_code == 202
        body = "\n".join(json.dumps(BODY) for _ in range(3))
        answers = http.post(f"{JOBS}/bulk?hold=0", content=body).text.splitlines()
        errors = [json.loads(line).get("error") for line in answers]
        assert [error and error["type"] for error in errors] == [
            None, "/problems/too-many-in-flight", "/problems/too-many-in-flight",
        ]  # fmt: skip
        refused = http.post(JOBS, json=BODY)
        problem(refused, 429, "too-many-in-flight")
        assert int(refused.headers["retry-after"]) >= 1
        assert http.put(f"{JOBS}/job-0", json=BODY).status_code == 202, "a repeat is no new job"
        assert in_flight(redis_db) == {key_id: 3}
        assert http.delete(f"{JOBS}/job-0").json()["outcome"] == "removed"
        assert in_flight(redis_db) == {key_id: 2}
        assert http.post(JOBS, json=BODY).status_code == 202
        problem(http.post(JOBS, json=BODY), 429, "too-many-in-flight")
        assert len(end_all(redis_db)) == 3
        assert in_flight(redis_db) == {}
        assert http.post(JOBS, json=BODY).status_code == 202
    end_all(redis_db)


def test_a_rate_holds_across_api_processes(api: ApiServer, redis_db: RedisServer) -> None:
    _, key = make_key(redis_db, rate=HARDLY_ANY)
    with (
        http_as(api, key) as http,
        api_server(redis_db.url, catalog(echo={}), auth="on") as second,
        http_as(second, key) as elsewhere,
    ):
        assert http.get("/api/v1/models").status_code == 200
        for one in (http, elsewhere, http):
            refused = one.get("/api/v1/models")
            problem(refused, 429, "rate-limited")
            assert int(refused.headers["retry-after"]) > 500


def test_a_key_makes_as_many_requests_as_its_rate_gives_and_no_more(
    api: ApiServer, redis_db: RedisServer
) -> None:
    rate = 20.0
    _, key = make_key(redis_db, rate=rate)
    _, free = make_key(redis_db)
    answers: Counter[int] = Counter()
    with http_as(api, key) as http, http_as(api, free) as unbound:
        began_at = time.monotonic()
        while answers[429] < 5 or answers[200] < 2 * rate:
            answers[http.get("/api/v1/models").status_code] += 1
        # A bucket of one second's worth, which fills as time goes, however slow the machine is.
        most = rate + rate * (time.monotonic() - began_at) + 1
        assert rate <= answers[200] <= most, answers
        assert set(answers) == {200, 429}
        assert unbound.get("/api/v1/models").status_code == 200, "each key has its own"


def test_a_line_of_a_bulk_request_counts_as_a_request(
    api: ApiServer, redis_db: RedisServer
) -> None:
    _, key = make_key(redis_db, rate=HARDLY_ANY)
    with http_as(api, key) as http:
        answer = http.post(f"{JOBS}/bulk?hold=0.1", content=json.dumps(BODY))
        assert json.loads(answer.text)["error"]["type"] == "/problems/rate-limited"
        assert end_all(redis_db) == []


def test_no_key_takes_the_id_of_anothers_idempotency_key(
    api: ApiServer, redis_db: RedisServer
) -> None:
    (owner, mine), (_, theirs) = make_key(redis_db), make_key(redis_db)
    taken = id_of_key("order-7", owner)
    stage = callback_id("order-8", "stage/cut/0")
    with http_as(api, mine) as http, http_as(api, theirs) as stranger:
        for job_id in (taken, stage):
            line = json.dumps({**BODY, "id": job_id})
            problem(stranger.put(f"{JOBS}/{job_id}", json=BODY), 422, "invalid-id")
            problem(stranger.post(JOBS, json={**BODY, "id": job_id}), 422, "invalid-id")
            answer = json.loads(stranger.post(f"{JOBS}/bulk", content=line).text)
            assert answer["error"]["type"] == "/problems/invalid-id"
        for replayed in (False, True):
            made = http.post(JOBS, json=BODY, headers={"idempotency-key": "order-7"})
            assert (made.status_code, made.json()["id"]) == (202, taken)
            assert ("idempotency-replayed" in made.headers) == replayed
    assert len(end_all(redis_db)) == 1


def test_a_line_that_is_not_valid_counts_too(api: ApiServer, redis_db: RedisServer) -> None:
    _, key = make_key(redis_db, rate=7)
    with http_as(api, key) as http, redis_db.client() as client:
        # The bucket has tokens for the request and for six lines, good or bad. It fills in an hour
        # from now.
        later_us = int((time.time() + 3600) * 1e6)
        client.set(f"hr:rate:{key.split('_')[1]}", f"7 {later_us}", ex=60)
        lines = [*["x"] * 5, json.dumps(BODY), "x", json.dumps(BODY), "x"]
        answer = http.post(f"{JOBS}/bulk?hold=0", content="\n".join(lines))
        found = [json.loads(line) for line in answer.text.splitlines()]
        codes = [one["error"]["type"].rpartition("/")[2] if "error" in one else "" for one in found]
        bad, over = "invalid-request", "rate-limited"
        assert codes == [*[bad] * 5, "", over, over, over], "none is read before it is paid"
        assert len(end_all(redis_db)) == 1


def test_lines_that_the_rate_allows_do_not_wait_for_the_others(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = make_key(redis_db, rate=1)
    gate = Event()

    async def spend(_: Caller, count: int) -> tuple[int, float]:
        """Allow the request, and two lines; the others when the gate is open."""
        if count == 4:
            return 2, 0.0
        if count == 2:
            await asyncio.to_thread(gate.wait)
        return count, 0.0

    access = api.services.authenticator
    assert access is not None
    monkeypatch.setattr(access.rates, "spend", spend)
    lines = "\n".join([json.dumps(BODY)] * 4)
    with http_as(api, key) as http, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, f"{JOBS}/bulk", content=lines)
        try:
            with redis_db.client() as client:
                queue = keys.queue_name("echo")
                wait_until(lambda: client.llen(queue) == 2, "two lines are queued")
        finally:
            gate.set()
        states = [json.loads(line)["status"] for line in answer.result().text.splitlines()]
    assert states == ["queued"] * 4
    assert len(end_all(redis_db)) == 4


def test_keys_are_seen_as_soon_as_they_are_made_and_until_they_are_revoked(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that only what is published can be the reason.
    monkeypatch.setattr(authenticator, "FRESH_S", 3600.0)
    monkeypatch.setattr(authenticator, "UNKNOWN_S", 3600.0)
    key_id, key = make_key(redis_db)
    with http_as(api, key) as http:
        assert http.get("/api/v1/models").status_code == 200
        revoke_key(redis_db, key_id)
        wait_until(lambda: http.get("/api/v1/models").status_code == 401, "the key is none")
    key_id, key = make_key(redis_db)
    with http_as(api, key) as http, redis_db.client() as client:
        assert http.get("/api/v1/models").status_code == 200
        _, renewed = ApiKeyStore(client).rotate(key_id)
        wait_until(lambda: http.get("/api/v1/models").status_code == 401, "the old secret is none")
        assert http.get("/api/v1/models", headers=bearer(renewed)).status_code == 200
        _, third = ApiKeyStore(client).rotate(key_id, grace_s=3600)
        wait_until(lambda: api.http.get("/api/v1/models", headers=bearer(third)).is_success, "new")
        assert api.http.get("/api/v1/models", headers=bearer(renewed)).is_success, "for an hour"


def test_a_lost_subscription_forgets_what_it_may_have_missed(
    api: ApiServer, redis_db: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "FRESH_S", 3600.0)
    key_id, key = make_key(redis_db)
    with http_as(api, key) as http, redis_db.client() as client:
        assert http.get("/api/v1/models").status_code == 200
        client.delete(f"hr:key:{key_id}")  # as a revocation that nobody heard
        client.client_kill_filter(_type="pubsub")
        wait_until(lambda: http.get("/api/v1/models").status_code == 401, "the key is none")


def test_while_redis_is_away_a_known_key_is_not_taken_for_a_bad_one() -> None:
    with redis_server() as own:
        # Before the API starts: the message that it was made would let a late reader forget it.
        _, key = make_key(own)
        with (
            api_server(own.url, catalog(echo={}), auth="on") as api,
            http_as(api, key) as http,
        ):
            raw: Any = own.client()
            with raw as client:

                def subscribed() -> bool:
                    return bool(client.pubsub_numsub(keys.API_KEY_CHANGES)[0][1] == 1)

                wait_until(subscribed, "the API hears of changes")
                # The first read may overlap with the new subscription and is then not cached.
                for _ in range(2):
                    assert http.get("/api/v1/models").status_code == 200
                # The key is read again after a lost connection, and not forgotten.
                client.client_kill_filter(_type="pubsub")
                wait_until(subscribed, "the API hears of changes again")
            own.stop(kill=True)
            said = problem(http.post(JOBS, json=BODY), 503, "broker-unavailable")
            assert "job" in said, "the id under which it may have been taken"
            unknown = http.get("/api/v1/models", headers=bearer("hr_000000000000_" + "a" * 43))
            problem(unknown, 503, "broker-unavailable")


def test_redis_holds_no_secret(redis_db: RedisServer) -> None:
    key_id, key = make_key(redis_db)
    secret = key.split("_", 2)[2].encode()
    with redis_db.client() as client:
        stored = {name: client.dump(name) for name in client.scan_iter()}
        # An API that is there for other tests may just have said something of its own.
        assert stored.keys() >= {f"hr:key:{key_id}".encode(), b"hr:keys"}
        assert not any(secret in (value or b"") for value in stored.values())


def test_a_part_of_the_deployment_acts_for_the_owner_of_a_job(
    api: ApiServer, alice: httpx2.Client, redis_db: RedisServer
) -> None:
    alice_id, _ = make_key(redis_db, Scope.SUBMIT, in_flight=1)
    _, internal = make_key(redis_db, *USER, acts=True)
    with http_as(api, internal) as http:
        http.headers["headrace-acts-for"] = alice_id
        job = http.post(JOBS, json=BODY).json()
        assert in_flight(redis_db) == {alice_id: 1}
        problem(http.post(JOBS, json=BODY), 429, "too-many-in-flight")
        problem(http.get(f"{JOBS}/{job['id']}"), 403, "forbidden")  # the owner may not read
        revoke_key(redis_db, alice_id)
        wait_until(lambda: http.post(JOBS, json=BODY).status_code == 401, "the owner is none")
        http.headers["headrace-acts-for"] = "-"
        problem(http.get(f"{JOBS}/{job['id']}"), 404, "job-not-found")
        assert http.delete(f"{JOBS}/{job['id']}").status_code == 404
        nobodys = http.post(JOBS, json=BODY).json()["id"]
        assert http.get(f"{JOBS}/{nobodys}").status_code == 202
        assert http.delete(f"{JOBS}/{nobodys}").json()["outcome"] == "removed"
    # Whoever is no part of the deployment acts for himself, whatever he says.
    mine = alice.post(JOBS, json=BODY, headers={"headrace-acts-for": "-"}).json()["id"]
    assert alice.get(f"{JOBS}/{mine}").status_code == 202
    end_all(redis_db)


def test_metrics_and_documents_are_open_as_the_settings_say(redis_db: RedisServer) -> None:
    documents = ("/docs", "/openapi.json", "/problems/queue-full", "/docs/static/docs.css")
    open_metrics = {"auth": "on", "auth_metrics": False, "auth_docs": True}
    with api_server(redis_db.url, catalog(echo={}), **open_metrics) as turned:
        assert turned.http.get("/metrics").status_code == 200
        assert turned.http.get("/live").status_code == turned.http.get("/ready").status_code == 200
        for path in documents:
            problem(turned.http.get(path), 401, "unauthorized")
            key = bearer(make_key(redis_db, Scope.SUBMIT)[1])
            assert turned.http.get(path, headers=key).status_code == 200
        problem(turned.http.get("/"), 401, "unauthorized")


def test_the_documents_name_models_only_to_who_may_read_them(redis_db: RedisServer) -> None:
    inputs = InputSection(schema={"type": "integer"})
    models = catalog(echo={"inputs": inputs}, plain={})
    with api_server(redis_db.url, models, auth="on") as server:
        reader = bearer(make_key(redis_db, Scope.READ)[1])
        submitter = bearer(make_key(redis_db, Scope.SUBMIT)[1])
        for path in ("/openapi.json", "/docs"):
            seen = [
                "Submit a job for echo" in server.http.get(path, headers=headers).text
                for headers in ({}, bearer("hr_nobody_x"), submitter, reader)
            ]
            assert seen == [False, False, False, True], path


def test_a_part_of_the_deployment_makes_its_own_key(api: ApiServer, redis_db: RedisServer) -> None:
    key = internal_key(redis_db.url)
    with http_as(api, key) as http, redis_db.client() as client:
        http.headers["headrace-acts-for"] = "-"
        assert http.get("/api/v1/models").status_code == 200
        problem(http.get("/api/v1/queues"), 403, "forbidden")
        (listed,) = ApiKeyStore(client).all()
        assert (listed.key.name, listed.key.acts) == ("runner (internal)", True)
        assert listed.key.expires_s > listed.key.created_s
