"""workers/lease_replicas.lua: how workers share the replicas of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
import redis
from redis.exceptions import ResponseError

from headrace.observability.worker_report import FIGURES, DeviceFigures, Figures
from headrace.redis import keys
from headrace.redis.script_client import call_script
from headrace.redis.scripts import script
from tests.harness.clients.script_calls import Queue

pytestmark = pytest.mark.leaves_keys

#: No lease ends while a test runs, unless the test ends it.
LEASE_US = 3_600_000_000
NEVER, NOW = 0, 10**16


@dataclass
class Host:
    """One worker that starts and ends processes at once, unless it `keeps` them."""

    client: redis.Redis
    name: str
    others: int = 0
    lease_us: int = LEASE_US
    granted: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    loading: bool = False
    keeps: bool = False
    able: int = -1
    takes: bool = False

    def call(self, reap_until: int = NEVER, /, **totals: int) -> list[int]:
        """One call with the total of each model; what it may run now."""
        rows: list[str | int] = []
        for model, total in totals.items():
            running = self.running.get(model, 0)
            ready = 0 if self.loading else running
            if self.able >= 0:
                ready = min(ready, self.able)
            granted, takes = self.granted.get(model, 0), int(self.takes)
            numbers = (total, granted, running, ready, self.able, takes)
            rows += [f"{model}@1", *numbers]
        lease = script("workers/lease_replicas")
        call = lease.call([], self.name, self.lease_us, reap_until, LEASE_US, self.others, *rows)
        found = call_script(self.client, call)[::2]
        for model, granted in zip(totals, found, strict=True):
            self.granted[model] = granted
            kept = self.running.get(model, 0) if self.keeps else 0
            self.running[model] = max(granted, kept)
        return list(found)


def hosts(queue: Queue, names: str) -> list[Host]:
    return [Host(queue.client, name) for name in names]


def settled(some: list[Host], **totals: int) -> list[list[int]]:
    """What each host has of each model when nothing changes any more."""
    before = None
    for _ in range(100):
        now = [host.call(**totals) for host in some]
        if now == before:
            return now
        before = now
    raise AssertionError(f"it does not settle: {before}")


@pytest.mark.parametrize(
    ("total", "shares"), [(0, [0, 0, 0]), (1, [0, 0, 1]), (3, [1, 1, 1]), (7, [2, 2, 3])]
)
def test_the_workers_share_evenly(queue: Queue, total: int, shares: list[int]) -> None:
    found = settled(hosts(queue, "abc"), m=total)
    assert sorted(granted for (granted,) in found) == shares


def test_one_that_joins_takes_over_one_by_one(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    assert settled([a], m=4) == [[4]]
    seen = []
    for _ in range(8):
        b.call(m=4)
        a.call(m=4)
        seen.append(a.granted["m"] + b.granted["m"])
    assert (a.granted["m"], b.granted["m"]) == (2, 2)
    assert min(seen) >= 3, "no more than one is missing at a time"
    assert max(seen) == 4


def test_models_with_one_replica_go_to_the_worker_with_fewer_in_all(queue: Queue) -> None:
    totals = dict.fromkeys([f"m{n}" for n in range(10)], 1)
    found = settled(hosts(queue, "ab"), **totals)
    assert [sum(granted) for granted in found] == [5, 5]
    assert [sum(pair) for pair in zip(*found, strict=True)] == [1] * 10


def test_many_replicas_are_shared_out_in_two_rounds(queue: Queue) -> None:
    totals = dict.fromkeys([f"m{n}" for n in range(30)], 2)
    some = hosts(queue, "abc")
    for _ in range(2):
        found = [host.call(**totals) for host in some]
    assert [sum(granted) for granted in found] == [20, 20, 20]
    assert all(sum(row) == 2 and max(row) == 1 for row in zip(*found, strict=True))


def test_processes_without_a_lease_count_too(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    a.others = 6
    totals = dict.fromkeys([f"m{n}" for n in range(8)], 1)
    assert [sum(granted) for granted in settled([a, b], **totals)] == [1, 7]


def test_what_loads_moves_to_a_worker_that_joins_and_what_is_loaded_stays(queue: Queue) -> None:
    totals = dict.fromkeys([f"m{n}" for n in range(6)], 1)
    a, b, c = hosts(queue, "abc")
    a.loading = True
    settled([a], **totals)
    assert sum(a.granted.values()) == 6
    a.loading = False
    b.call(**totals)
    settled([a, b], **totals)
    assert sum(a.granted.values()) == 6, "no loaded replica moves"
    a.loading = True
    settled([a, b], **totals)
    assert (sum(a.granted.values()), sum(b.granted.values())) == (3, 3)
    assert c.call(**totals) == [0] * 6


def test_fewer_are_given_up_by_those_with_most(queue: Queue) -> None:
    some = hosts(queue, "abc")
    settled(some, m=7)
    assert sorted(granted for (granted,) in settled(some, m=4)) == [1, 1, 2]
    assert settled(some, m=0) == [[0], [0], [0]]
    assert sorted(granted for (granted,) in settled(some, m=2)) == [0, 1, 1]


def test_a_replica_is_free_when_its_process_has_ended(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    settled([a], m=2)
    a.keeps = True
    for _ in range(5):
        b.call(m=2)
        a.call(m=2)
    assert (a.granted["m"], a.running["m"], b.granted["m"]) == (1, 2, 0), "a still drains one"
    a.keeps = False
    assert settled([a, b], m=2) == [[1], [1]]


def test_a_dead_workers_replicas_are_free_when_its_lease_has_expired(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    settled([a, b], m=2)
    a.lease_us = 0
    a.call(m=2)
    assert settled([b], m=2) == [[1]], "leases may not be removed so soon after an outage"
    for _ in range(3):
        b.call(NOW, m=2)
    assert b.granted["m"] == 2
    # It was suspended, and is back with processes that another worker has started since.
    a.lease_us = LEASE_US
    assert sum(granted for (granted,) in settled([a, b], m=2)) == 2


def test_a_worker_that_leaves_frees_its_replicas_at_once(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    settled([a, b], m=4)
    assert a.call(m=-1) == [0]
    assert settled([b], m=4) == [[4]]
    assert queue.client.hkeys(keys.replica_leases("m@1")) == [b"b"]
    assert 0 < queue.client.ttl(keys.replica_leases("m@1")) <= keys.REPLICA_LEASES_TTL_S


def test_what_a_worker_cannot_load_goes_to_others_and_stays_there(queue: Queue) -> None:
    a, b, c = hosts(queue, "abc")
    a.able = 0
    assert settled([a], m=2) == [[2]], "it tries on while no other takes part"
    assert settled([a, b], m=2) == [[0], [2]]
    assert settled([a, b], m=3) == [[0], [3]]
    assert sorted(granted for (granted,) in settled([a, b, c], m=3)) == [0, 1, 2]
    assert a.granted["m"] == 0
    a.able = -1
    settled([a, b, c], m=3)  # until the one that has two has ended one
    assert settled([a, b, c], m=3) == [[1], [1], [1]]


def test_a_worker_that_can_load_some_keeps_those(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    a.able = 1
    assert settled([a, b], m=4) == [[1], [3]]
    assert settled([a, b], m=1) in ([[1], [0]], [[0], [1]])


def test_what_no_worker_can_load_stays_where_it_is(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    a.able = b.able = 0
    found = settled([a, b], m=3)
    assert sum(granted for (granted,) in found) == 3
    assert [[*host.call(m=3)] for host in (a, b, a, b)] == found * 2
    a.able = -1
    assert settled([a, b], m=3) == [[3], [0]]


def test_what_redis_has_lost_is_kept_by_those_that_run_it(queue: Queue) -> None:
    some = hosts(queue, "ab")
    before = settled(some, m=4)
    queue.client.delete(keys.replica_leases("m@1"))
    assert [host.call(m=4) for host in some] == before
    assert settled(some, m=4) == before


def test_a_key_of_the_wrong_type_errs_before_anything_is_written(queue: Queue) -> None:
    (a,) = hosts(queue, "a")
    settled([a], m=1)
    before = queue.client.hgetall(keys.replica_leases("m@1"))
    queue.client.set(keys.replica_leases("n@1"), "another application's")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        a.call(m=2, n=1)
    assert queue.client.hgetall(keys.replica_leases("m@1")) == before


def test_an_entry_that_cannot_be_read_is_removed(queue: Queue) -> None:
    (a,) = hosts(queue, "a")
    queue.client.hset(keys.replica_leases("m@1"), "old", "of another version")
    assert settled([a], m=2) == [[2]]
    assert queue.client.hkeys(keys.replica_leases("m@1")) == [b"a"]


def report(queue: Queue, name: str, *free: int) -> None:
    devices = [
        DeviceFigures(str(n), memory_used_bytes=10, memory_bytes=10 + one)
        for n, one in enumerate(free)
    ]
    queue.client.hset(keys.worker(name), FIGURES, msgspec.json.encode(Figures(devices=devices)))


@pytest.mark.parametrize("first", ["ab", "ba"])
def test_of_equal_workers_the_one_with_more_free_gpu_memory_is_first(
    queue: Queue, first: str
) -> None:
    report(queue, "a", 50, 900)  # its smallest GPU counts
    report(queue, "b", 60)
    some = {host.name: host for host in hosts(queue, first)}
    settled(list(some.values()), m=3)
    assert (some["a"].granted["m"], some["b"].granted["m"]) == (1, 2)


def test_nearly_equal_free_memory_and_unreadable_reports_decide_nothing(queue: Queue) -> None:
    report(queue, "a", 100)
    report(queue, "b", 109)
    queue.client.hset(keys.worker("c"), FIGURES, "no JSON")
    a, b, c = hosts(queue, "abc")
    assert sorted(granted for (granted,) in settled([a, b], m=1)) == [0, 1]
    assert sorted(granted for (granted,) in settled([a, b, c], m=3)) == [1, 1, 1]


def live(queue: Queue, *names: str, age_s: float = 0) -> None:
    """Let workers have reported so long ago."""
    seconds, _ = queue.client.time()
    queue.client.zadd(keys.WORKERS, {name: int(seconds) - age_s for name in names})


def test_a_worker_alone_takes_all_in_its_first_call_unless_it_starts(queue: Queue) -> None:
    (a,) = hosts(queue, "a")
    live(queue, "a")
    live(queue, "gone", age_s=2 * LEASE_US / 1e6)
    assert a.call(m=3) == [0]
    a.takes = True
    assert a.call(n=3) == [3]


@pytest.mark.parametrize(("total", "shares"), [(1, [0, 1]), (2, [1, 1]), (5, [2, 3])])
def test_a_first_call_leaves_the_other_workers_their_share(
    queue: Queue, total: int, shares: list[int]
) -> None:
    live(queue, "a", "b")
    some = hosts(queue, "ab")
    for host in some:
        host.takes = True
    assert sorted(host.call(m=total)[0] for host in some) == shares
    assert sorted(granted for (granted,) in settled(some, m=total)) == shares


def test_first_calls_share_out_models_with_one_replica(queue: Queue) -> None:
    live(queue, "a", "b", "c")
    totals = dict.fromkeys([f"m{n}" for n in range(9)], 1)
    some = hosts(queue, "abc")
    for host in some:
        host.takes = True
    found = [host.call(**totals) for host in some]
    assert [sum(granted) for granted in found] == [3, 3, 3]
    assert all(sum(row) == 1 for row in zip(*found, strict=True))


def test_the_share_of_a_worker_that_takes_no_part_is_taken_in_the_next_call(queue: Queue) -> None:
    live(queue, "a", "b")
    (a,) = hosts(queue, "a")
    a.takes = True
    assert [a.call(m=4), a.call(m=4)] == [[2], [4]]


def test_a_first_call_takes_nothing_that_is_granted_or_still_runs(queue: Queue) -> None:
    a, b = hosts(queue, "ab")
    settled([a], m=2)
    a.keeps = True
    b.takes = True
    assert b.call(m=2) == [0]
    a.call(m=1)
    assert (a.granted["m"], a.running["m"]) == (1, 2)
    assert b.call(m=2) == [0], "a still drains one"
