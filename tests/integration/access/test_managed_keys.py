"""API keys over the API: who makes and revokes them, and what the audit log says of it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Client
from headrace.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    KeyNotFound,
    QueueNotFound,
    Unauthorized,
)
from tests.harness.clients.access import ALL, bearer, make_key, revoke_key
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

API_SETTINGS = {"auth": "on"}
KEYS = "/api/v1/keys"


def client_of(api: ApiServer, key: str) -> Client:
    return Client(api.url, api_key=key)


def test_a_key_is_made_used_listed_and_revoked(api: ApiServer, redis_db: RedisServer) -> None:
    chief_id, chief_key = make_key(redis_db, *ALL)
    with client_of(api, chief_key) as chief:
        made = chief.create_api_key("reports", ["read"], rate=50, expires_in_s=3600)
        assert made.key.startswith(f"hr_{made.id}_")
        assert (made.scopes, made.rate, made.max_in_flight) == (["read"], 50, None)
        with client_of(api, made.key) as reports:
            own = reports.own_key()
            assert (own.id, own.name, own.scopes) == (made.id, "reports", ["read"])
            assert own.expires_at == made.expires_at
            with pytest.raises(Forbidden):
                reports.api_keys()

            def used() -> Any:
                return next(one for one in chief.api_keys() if one.id == made.id).last_used_at

            assert wait_until(used, "its use is seen").timestamp() >= int(
                made.created_at.timestamp()
            )
            listed = api.http.get(KEYS, headers=bearer(chief_key)).text
            assert [one.id for one in chief.api_keys()] == [chief_id, made.id]
            assert made.key.rpartition("_")[2] not in listed, "a secret is shown once"
            chief.revoke_api_key(made.id)
            with pytest.raises(Unauthorized):
                reports.own_key()
        with pytest.raises(KeyNotFound):
            chief.revoke_api_key(made.id)
        entries = list(chief.audit(target=made.id))
        assert [(e.action, e.by, e.detail) for e in entries] == [
            ("revoke_key", chief_id, "'reports' (read)"),
            ("create_key", chief_id, "'reports' (read)"),
        ]
        with redis_db.client() as redis:
            stored: Any = redis.execute_command("HGETALL", "hr:keys:used")
            assert made.id.encode() not in stored, "nothing is left of it"
    revoke_key(redis_db, chief_id)


def test_the_audit_log_has_every_change_and_who_made_it(
    api: ApiServer, redis_db: RedisServer
) -> None:
    (anna_id, anna_key), (ben_id, ben_key), (_, user_key) = (
        make_key(redis_db, *ALL),
        make_key(redis_db, *ALL),
        make_key(redis_db),
    )
    with (
        client_of(api, anna_key) as anna,
        client_of(api, ben_key) as ben,
        client_of(api, user_key) as user,
    ):
        jobs = [anna.submit("echo", n).id for n in range(3)]
        anna.pause_queue("echo")
        ben.cancel([jobs[0]])
        user.cancel([jobs[1]])
        with pytest.raises(Forbidden):
            user.pause_queue("echo")
        with pytest.raises(QueueNotFound):
            ben.purge_queue("ecco")
        ben.purge_queue("echo")
        anna.resume_queue("echo")
        queue = "headrace.echo"
        wanted = [
            ("resume_queue", anna_id, queue, ""),
            ("purge_queue", ben_id, queue, "2 jobs cancelled"),
            ("cancel_many", ben_id, "", "1 jobs"),
            ("pause_queue", anna_id, queue, ""),
        ]
        entries = [e for e in anna.audit() if e.by in (anna_id, ben_id)]
        assert [(e.action, e.by, e.target, e.detail) for e in entries] == wanted
        one_by_one = api.http.get
        seen, cursor = [], ""
        while True:
            query = {"by": anna_id, "limit": "1", **({"cursor": cursor} if cursor else {})}
            page = one_by_one("/api/v1/audit", params=query, headers=bearer(anna_key)).json()
            seen += [entry["action"] for entry in page["entries"]]
            cursor = page["cursor"]
            if not cursor:
                break
        assert seen == ["resume_queue", "pause_queue"]
        for bad in ("x", "1", "1-1-1"):
            answer = one_by_one("/api/v1/audit", params={"cursor": bad}, headers=bearer(anna_key))
            assert answer.status_code == 400
        first = one_by_one("/api/v1/audit", params={"cursor": "0-0"}, headers=bearer(anna_key))
        assert first.json() == {"entries": [], "cursor": None}


def test_a_cancel_is_noted_if_the_key_may_manage(api: ApiServer, redis_db: RedisServer) -> None:
    (chief_id, chief_key), (_, user_key) = make_key(redis_db, *ALL), make_key(redis_db)
    with client_of(api, chief_key) as chief, client_of(api, user_key) as user:
        own, others = user.submit("echo", 1).id, user.submit("echo", 2).id
        user.cancel(own)
        chief.cancel(others)
        chief.cancel(others)  # it has ended, so nothing changes
        found = [
            (one.by, one.target, one.detail) for one in chief.audit() if one.target in (own, others)
        ]
        assert found == [(chief_id, others, "it will not run")]
        user.submit("echo", 3)
        chief.purge_queue("echo")  # with what cancels leave in its list


def test_without_keys_a_cancel_is_noted_if_the_console_asks(redis_db: RedisServer) -> None:
    with api_server(redis_db.url, catalog(echo={}), auth="off") as api, Client(api.url) as client:
        first, second = (client.submit("echo", n).id for n in range(2))
        client.cancel(first)
        path = f"/api/v1/jobs/{second}"
        assert api.http.delete(path, headers={"headrace-client": "console"}).status_code == 200
        found = [one for one in client.audit() if one.target in (first, second)]
        assert [(one.action, one.target) for one in found] == [("cancel_job", second)]
        client.submit("echo", 3)
        client.purge_queue("echo")


def test_without_keys_everybody_may_everything_but_make_keys(redis_db: RedisServer) -> None:
    key_id, _ = make_key(redis_db, acts=True)
    with api_server(redis_db.url, catalog(echo={}), auth="off") as api, Client(api.url) as client:
        own = client.own_key()
        assert (own.id, own.scopes) == (None, ["manage", "read", "submit"])
        assert [one.id for one in client.api_keys()] == [key_id]
        with pytest.raises(Conflict, match="requires no API keys"):
            client.create_api_key("back door")
        with pytest.raises(Conflict):
            client.revoke_api_key(key_id)
        client.pause_queue("echo")
        client.resume_queue("echo")
        assert {entry.by for entry in client.audit()} == {"a client without an API key"}
    revoke_key(redis_db, key_id)


def test_the_key_of_a_component_is_not_revoked(api: ApiServer, redis_db: RedisServer) -> None:
    internal, _ = make_key(redis_db, acts=True)
    chief_id, chief_key = make_key(redis_db, *ALL)
    with client_of(api, chief_key) as chief:
        with pytest.raises(Conflict, match="component"):
            chief.revoke_api_key(internal)
        with pytest.raises(InvalidRequest):
            chief.create_api_key("\x1b[31m")
        assert {one.id: one.internal for one in chief.api_keys()} == {
            internal: True, chief_id: False,
        }  # fmt: skip
