"""Random histories of a queue against a model in Python: no job is lost, none ends twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.redis import keys
from headrace.redis.scripts.jobs import FENCED, IN_EITHER, IN_PROCESS, IN_WORKER, ISOLATION_ENDS
from tests.harness.clients.script_calls import Job, Leased, Queue
from tests.harness.servers.redis_servers import RedisServer

STEPS = st.sampled_from(keys.STEPS)
OUTCOMES = {"queued": "waiting", "cancelled": "ended", "dead": "ended"}


class History(RuleBasedStateMachine):
    """Each job is in one of three states; claims are kept for ever, so that stale ones are used."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.client = self.server.client()
        self.client.flushall()
        self.queue = Queue(self.client)
        self.states: dict[str, str] = {}
        self.claims: list[Leased] = []
        self.current: dict[str, str] = {}
        self.asked: set[str] = set()
        self.ends: dict[str, int] = {}

    @initialize()
    def begin(self) -> None:
        self.submit(1, 0, 0)

    def teardown(self) -> None:
        self.client.close()

    def _end(self, job_id: str) -> None:
        self.states[job_id] = "ended"
        self.ends[job_id] = self.ends.get(job_id, 0) + 1
        self.current.pop(job_id, None)

    def _given_back(self, job_id: str, fate: str) -> None:
        self.current.pop(job_id)
        if OUTCOMES[fate] == "ended":
            self._end(job_id)
        else:
            self.states[job_id] = "waiting"

    @rule(count=st.integers(1, 3), step=STEPS, delay_us=st.sampled_from([0, 0, 1]))
    def submit(self, count: int, step: int, delay_us: int) -> None:
        for _ in range(count):
            # Ids of its own making, so that a history can be replayed.
            job_id = f"j{len(self.states)}"
            self.queue.submit_one(id=job_id, step=step, delay_us=delay_us)
            self.states[job_id] = "waiting"

    @rule(count=st.integers(1, 4), expired=st.booleans(), owner=st.sampled_from(["v", "w"]))
    def claim(self, count: int, expired: bool, owner: str) -> None:
        claimed = self.queue.claim(count, lease_us=0 if expired else 10**12, owner=owner)
        for job in claimed.jobs:
            assert self.states[job.id] == "waiting", "claimed what is leased or has ended"
            self.states[job.id] = "leased"
            self.current[job.id] = job.token
            self.claims.append(job)

    @rule(data=st.data(), retry=st.booleans())
    def settle(self, data: st.DataObject, retry: bool) -> None:
        if not self.claims:
            return
        job = data.draw(st.sampled_from(self.claims))
        ours = self.current.get(job.id) == job.token
        (code,) = self.queue.settle(
            job, state="f", extra=("e", "{}"), retry_us="1" if retry else ""
        )
        if not ours:
            assert code in (0, 2)
        elif job.id in self.asked:
            assert code == 3
            self._end(job.id)
        elif retry:
            assert code == 4
            self.current.pop(job.id)
            self.states[job.id] = "waiting"
        else:
            assert code == 1
            self._end(job.id)

    @rule(data=st.data(), mode=st.sampled_from(["free", "alone", "crash", "lost"]))
    def release(self, data: st.DataObject, mode: str) -> None:
        if not self.claims:
            return
        job = data.draw(st.sampled_from(self.claims))
        ours = self.current.get(job.id) == job.token
        (fate,) = self.queue.release(job, mode=mode)
        assert (fate != "fenced") == ours
        if ours:
            assert (fate == "cancelled") == (job.id in self.asked)
            self._given_back(job.id, fate)

    @rule(data=st.data(), scope=st.sampled_from([IN_PROCESS, IN_WORKER, IN_EITHER, ISOLATION_ENDS]))
    def isolate(self, data: st.DataObject, scope: str) -> None:
        if not self.claims:
            return
        job = data.draw(st.sampled_from(self.claims))
        ours = self.current.get(job.id) == job.token
        assert (self.queue.isolate(job, scope) == FENCED) == (not ours)

    @rule(data=st.data(), expired=st.booleans())
    def renew(self, data: st.DataObject, expired: bool) -> None:
        if not self.claims:
            return
        job = data.draw(st.sampled_from(self.claims))
        (answer,) = self.queue.renew(job, lease_us=0 if expired else 10**12)
        ours = self.current.get(job.id) == job.token
        assert answer == (ours and (2 if job.id in self.asked else 1))

    def _look_at_leases(self) -> None:
        """After a reaping call: what is no longer leased waits or has ended, as its record says."""
        held = self.queue.held()
        for job_id in [job_id for job_id in self.current if job_id not in held]:
            state = self.queue.record(job_id)["s"]
            self._given_back(job_id, {"q": "queued", "c": "cancelled", "f": "dead"}[state])

    @rule()
    def sweep(self) -> None:
        self.queue.sweep()
        self._look_at_leases()

    @rule(owner=st.sampled_from(["v", "w"]), data=st.data())
    def release_owner(self, owner: str, data: st.DataObject) -> None:
        keep = data.draw(st.lists(st.sampled_from(sorted(self.current.values()) or ["0"])))
        self.queue.release_owner(owner, *keep, mode="lost")
        self._look_at_leases()
        assert not set(keep) - {"0"} - set(self.current.values()), "gave back what was kept"

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.states)))
        (fate,) = self.queue.cancel(job_id)
        assert (
            fate == {"waiting": "removed", "leased": "asked", "ended": "ended"}[self.states[job_id]]
        )
        if fate == "removed":
            self._end(job_id)
        elif fate == "asked":
            self.asked.add(job_id)

    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.states)))
        ((code, _, _),) = self.queue.submit(Job(id=job_id))
        assert code == 2

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not self.states:
            return
        by_state = {
            state: {job_id for job_id, now in self.states.items() if now == state}
            for state in ("waiting", "leased", "ended")
        }
        assert self.queue.held().keys() == by_state["leased"]
        listed = self.queue.listed()
        waiting = {job_id for job_id in self.states if self.queue.record(job_id)["s"] in "qd"}
        assert waiting == by_state["waiting"]
        parked = self.queue.parked()
        depth = self.queue.depth()
        assert depth.waiting + depth.delayed == len(waiting)
        assert len(listed) >= depth.waiting
        assert len(parked) == depth.delayed
        assert all(count == 1 for count in self.ends.values()), "a job ended twice"


def drain(history: History) -> None:
    """At the end all that waits is served, and nothing else is left."""
    queue = history.queue
    for owner in ("v", "w"):
        queue.release_owner(owner)
    history._look_at_leases()
    while queue.parked():
        queue.sweep(reap=False)
    while claimed := queue.claim().jobs:
        assert {history.states[job.id] for job in claimed} == {"waiting"}
        queue.settle(*claimed)
    assert queue.listed() == []
    for job_id in history.states:
        assert queue.record(job_id)["s"] in ("s", "f", "c")
    depth = queue.depth()
    assert (depth.waiting, depth.leased, depth.delayed) == (0, 0, 0)


@pytest.mark.leaves_keys
def test_no_history_loses_a_job_or_ends_one_twice(any_redis: RedisServer) -> None:
    class OnServer(History):
        server = any_redis

        def teardown(self) -> None:
            drain(self)
            super().teardown()

    run_state_machine_as_test(
        OnServer,
        settings=settings(max_examples=25, stateful_step_count=40, deadline=None, database=None),
    )
