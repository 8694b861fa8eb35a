"""profiles/*.lua: one request per version, taken by one worker, saved; the oldest are deleted."""

from __future__ import annotations

import pytest
import redis

from headrace.observability import profiles
from headrace.observability.profiles import ProfileRequest
from headrace.redis import keys
from headrace.redis.script_client import ScriptClient
from headrace.schema.operation import Profile
from tests.harness.servers.redis_servers import RedisServer

ASKED = ProfileRequest(batches=2, seconds=3.0)


@pytest.fixture
def store(any_redis: RedisServer) -> ScriptClient:
    return ScriptClient(redis.Redis.from_url(any_redis.url))


def request(store: ScriptClient, name: str, model: str = "m", seconds: float = 3.0) -> str:
    asked = ProfileRequest(seconds=seconds)
    (busy,) = store.call(profiles.request(name, asked, model, "1"))
    return bytes(busy).decode()


def read(store: ScriptClient, name: str, later_s: float = 0.0) -> Profile | None:
    fields = store.execute(*profiles.read_fields(name))
    seconds, micros = store.execute("TIME")
    replies = store.read_all(profiles.record_commands(name, fields))
    now_us = int((seconds + later_s) * 1_000_000) + micros
    return profiles.profile_of(name, fields, replies, now_us)


def known(store: ScriptClient, name: str, later_s: float = 0.0) -> Profile:
    found = read(store, name, later_s)
    assert found is not None
    return found


def test_a_version_has_one_profile_at_a_time(store: ScriptClient) -> None:
    assert request(store, "a") == ""
    assert request(store, "a") == "", "a repeat of a call is no second request"
    assert request(store, "b") == "a"
    assert read(store, "b") is None
    assert request(store, "c", model="other") == ""
    assert store.execute("HGET", keys.REGISTRY, "profile") == b"c"
    store.call(profiles.take("a", "w"))
    assert request(store, "b") == "a"
    store.call(profiles.save("a", {}, "broken"))
    assert request(store, "b") == ""


def test_one_worker_takes_it(store: ScriptClient) -> None:
    request(store, "a")
    assert known(store, "a").state == "requested"
    assert store.call(profiles.take("a", "w")) != []
    assert store.call(profiles.take("a", "w")) != [], "a repeat after a lost answer"
    assert store.call(profiles.take("a", "another")) == []
    assert store.call(profiles.take("none", "w")) == []
    assert known(store, "a").state == "running"


def test_its_files_are_saved_once(store: ScriptClient) -> None:
    request(store, "a")
    assert store.call(profiles.save("a", {"x": b"1"})) == [0], "no worker has taken it"
    store.call(profiles.take("a", "w"))
    assert store.call(profiles.save("a", {"x": b"12", "y.gz": b"\0\xff"})) == [1]
    assert store.call(profiles.save("a", {}, "late")) == [0]
    found = known(store, "a")
    assert (found.state, found.error, found.automatic) == ("done", None, False)
    assert {file.name: file.bytes for file in found.files} == {"x": 2, "y.gz": 2}
    assert store.execute(*profiles.read_file("a", "y.gz")) == b"\0\xff"
    for key in (keys.profile("a"), keys.PROFILES):
        assert 0 < store.execute("TTL", key) <= profiles.TTL_S


def test_an_expired_profile_does_not_come_back(store: ScriptClient) -> None:
    request(store, "a")
    store.call(profiles.take("a", "w"))
    store.execute("DEL", keys.profile("a"))
    assert store.call(profiles.save("a", {"x": b"1"})) == [0]
    assert read(store, "a") is None


def test_an_automatic_one_needs_no_request(store: ScriptClient) -> None:
    name = f"{profiles.AUTOMATIC}1"
    store.call(profiles.save(name, {"x": b"1"}, automatic=(ASKED, profiles.of_model("m", "2"))))
    found = known(store, name)
    assert (found.state, found.automatic, found.model, found.version) == ("done", True, "m", "2")


def test_the_newest_are_kept(store: ScriptClient) -> None:
    names = [f"p{n}" for n in range(profiles.KEPT + 3)]
    for name in names:
        request(store, name, model=name)
    kept = [one.decode() for one in store.execute(*profiles.READ_IDS)]
    assert kept == names[::-1][: profiles.KEPT]
    assert read(store, names[0]) is None
    assert read(store, names[-1]) is not None


def test_what_no_worker_answers_has_failed(store: ScriptClient) -> None:
    request(store, "a")
    found = known(store, "a", later_s=profiles.TAKEN_S + 1)
    assert found.state == "failed"
    assert "no worker took the request" in (found.error or "")
    store.call(profiles.take("a", "w"))
    assert known(store, "a", later_s=profiles.TAKEN_S + 1).state == "running"
    found = known(store, "a", later_s=profiles.WRITE_S + 4)
    assert found.state == "failed"
    assert "did not answer in time" in (found.error or "")


def test_a_request_whose_worker_is_gone_blocks_no_other(store: ScriptClient) -> None:
    store.call(profiles.request("a", ASKED, "m", "1"))
    store.execute("HSET", keys.profile("a"), "until", 1)
    assert request(store, "b") == ""


def test_a_request_that_has_failed_is_not_taken_any_more(store: ScriptClient) -> None:
    request(store, "a")
    seconds, _ = store.execute("TIME")
    store.execute("HSET", keys.profile("a"), "at", (seconds - profiles.TAKEN_S - 1) * 1_000_000)
    assert known(store, "a").state == "failed"
    assert store.call(profiles.take("a", "w")) == []
