"""When isolated jobs begin, and what may run beside them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace.config.model.catalog import ModelConfig
from headrace.redis.scripts.jobs import (
    EXCLUSIVE,
    FENCED,
    HOST_TAKEN,
    IN_EITHER,
    IN_PROCESS,
    IN_WORKER,
    ISOLATED,
    ISOLATION_ENDS,
    RESERVED,
)
from tests.harness.clients.messages import write_message
from workers.jobs.leased_job import LeasedJob
from workers.models.served_model import ServedModel
from workers.protocol.frames import Phase
from workers.replicas.replica import Replica
from workers.scheduling.dispatcher import Dispatched, Dispatcher
from workers.scheduling.isolation import RETRY_S, TRANSFERS_MAX_S, TRANSFERS_RETRY_S, IsolatedRun

NOW = 1000.0
numbers = itertools.count(1)


def job(*, isolated: bool = False, exclusive: bool = False, withheld: bool = False) -> LeasedJob:
    number = next(numbers)
    return LeasedJob(
        id=f"job-{number}", token=str(number), message=None, created_us=0, enqueued_at=NOW,
        claimed_at=NOW, attempts=1, isolated=isolated or exclusive, exclusive=exclusive,
        withheld=withheld,
    )  # fmt: skip


def served(name: str, *jobs: LeasedJob, replicas: int = 1) -> ServedModel:
    """A model with loaded processes and prepared jobs."""
    config = ModelConfig(name=name, handler="echo", max_batch_size=4, replicas=replicas)
    loaded = [Replica({"device": "cpu"}, {}, state=Phase.READY) for _ in range(replicas)]
    model = ServedModel(config, 0, loaded)
    for one in jobs:
        model._batcher.add(one)
    return model


def dispatch(at: Dispatcher, *, connected: bool = True, now: float = NOW) -> list[Dispatched]:
    """All batches that can be sent now."""
    found = []
    while (one := at.next(now, claims=connected)) is not None:
        one.replica.batch = one.batch
        found.append(one)
    return found


def asked(at: Dispatcher) -> IsolatedRun:
    (run,) = at.isolation.take_requests()
    return run


def reserve(at: Dispatcher, *, now: float = NOW) -> IsolatedRun:
    """The run of an exclusive job that Redis has granted the host."""
    dispatch(at, now=now)
    run = asked(at)
    assert run.scope == RESERVED
    at.isolation.answered(run, EXCLUSIVE, now)
    return run


def jobs_of(batches: list[Dispatched]) -> list[Any]:
    return [one.batch.jobs for one in batches]


def test_an_isolated_job_begins_when_redis_has_marked_it() -> None:
    suspect, other = job(isolated=True), job()
    model = served("m", suspect, other, replicas=2)
    at = Dispatcher([model])
    assert dispatch(at) == [], "the model waits for the answer"
    assert asked(at).scope == IN_PROCESS
    assert dispatch(at) == []
    run = IsolatedRun(model, suspect, IN_PROCESS)
    at.isolation.answered(run, ISOLATED, NOW)
    assert dispatch(at) == [], "the answer to another question"


def test_other_jobs_of_the_model_run_beside_it_in_other_processes() -> None:
    suspect, other = job(isolated=True), job()
    at = Dispatcher([served("m", suspect, other, replicas=2)], slots=2)
    dispatch(at)
    at.isolation.answered(asked(at), ISOLATED, NOW)
    sent = dispatch(at)
    assert jobs_of(sent) == [[suspect], [other]]
    assert [one.batch.reason for one in sent] == ["alone", "idle"]
    sent[0].replica.batch = None
    dispatch(at)
    assert at.isolation.take_requests() == [], "its mark may stay"


def test_the_only_process_of_a_worker_is_asked_for_both() -> None:
    suspect, other = job(isolated=True), job()
    at = Dispatcher([served("m", suspect, other)])
    dispatch(at)
    run = asked(at)
    assert run.scope == IN_EITHER
    at.isolation.answered(run, EXCLUSIVE, NOW)
    (sent,) = dispatch(at)
    assert sent.batch.jobs == [suspect]
    sent.replica.batch = None
    assert dispatch(at) == [], "its mark must go first"
    assert asked(at).scope == ISOLATION_ENDS
    at.isolation.answered(run, ISOLATED, NOW)
    assert jobs_of(dispatch(at)) == [[other]]


def test_an_exclusive_job_waits_for_all_other_batches_and_holds_new_ones() -> None:
    running, suspect, later = job(), job(exclusive=True), job()
    first, second = served("a", running), served("b")
    at = Dispatcher([first, second], slots=2)
    assert jobs_of(dispatch(at)) == [[running]]
    second._batcher.add(suspect)
    run = reserve(at)
    first._batcher.add(later)
    assert dispatch(at) == []
    assert at.isolation.take_requests() == [], "it is not marked while others run"
    assert not at.may_run(second)
    assert at.isolation.holds_claims
    first.replicas[0].batch = None
    assert dispatch(at) == []
    assert asked(at) is run
    assert run.scope == IN_WORKER
    at.isolation.answered(run, EXCLUSIVE, NOW)
    assert jobs_of(dispatch(at)) == [[suspect]]
    second.replicas[0].batch = None
    dispatch(at)
    at.isolation.answered(asked(at), ISOLATED, NOW)
    assert jobs_of(dispatch(at)) == [[later]]


@pytest.mark.parametrize("refusal", [HOST_TAKEN, FENCED])
def test_others_run_while_another_worker_of_the_host_has_an_exclusive_job(refusal: int) -> None:
    suspect, other = job(exclusive=True), job()
    at = Dispatcher([served("m", suspect, other)])
    dispatch(at)
    run = asked(at)
    assert run.scope == RESERVED
    at.isolation.answered(run, refusal, NOW)
    sent = dispatch(at)
    assert jobs_of(sent) == [[other]]
    sent[0].replica.batch = None
    assert dispatch(at) == []
    assert at.isolation.take_requests() == []
    dispatch(at, now=NOW + RETRY_S)
    assert asked(at).job is suspect


def test_others_run_until_redis_has_reserved_the_host() -> None:
    running, suspect, later = job(), job(exclusive=True), job()
    first, second = served("a", running), served("b", suspect)
    at = Dispatcher([first, second], slots=2)
    assert jobs_of(dispatch(at)) == [[running]]
    first.replicas[0].batch = None
    first._batcher.add(later)
    assert jobs_of(dispatch(at)) == [[later]], "nothing waits for an answer that can be no"
    assert not at.isolation.holds_claims
    run = asked(at)
    at.isolation.answered(run, HOST_TAKEN, NOW)
    assert not at.isolation.holds(first)
    assert not at.isolation.holds(second)


def test_an_exclusive_job_waits_for_transfers_and_claims_but_not_for_a_store_that_hangs() -> None:
    fetched, suspect, other = job(), job(exclusive=True), job()
    model = served("m", suspect)
    at = Dispatcher([model])
    model._pending_payloads.in_transfer[fetched.token] = fetched
    run = reserve(at)
    model._batcher.add(other)
    assert dispatch(at) == []
    assert at.isolation.take_requests() == []
    assert dispatch(at, now=NOW + TRANSFERS_MAX_S) == []
    assert asked(at).scope == ISOLATION_ENDS
    at.isolation.answered(run, ISOLATED, NOW + TRANSFERS_MAX_S)
    assert jobs_of(dispatch(at, now=NOW + TRANSFERS_MAX_S)) == [[other]]
    model.replicas[0].batch = None
    model._pending_payloads.in_transfer.clear()
    again = NOW + TRANSFERS_MAX_S + TRANSFERS_RETRY_S
    run = reserve(at, now=again)
    model._backlog.claim_sent([1], again)
    dispatch(at, now=again)
    assert at.isolation.take_requests() == [], "a claim has no answer yet"
    model._backlog.end_claim()
    dispatch(at, now=again)
    assert asked(at).scope == IN_WORKER


def test_the_only_process_is_given_to_what_a_claim_may_bring_first() -> None:
    suspect, better = job(isolated=True), job(isolated=True)
    suspect.step = 6
    model = served("m", suspect)
    at = Dispatcher([model])
    model._backlog.assume_waiting()
    assert dispatch(at) == []
    assert at.isolation.take_requests() == []
    assert not at.isolation.holds_claims
    model._backlog.claim_sent(model.claim_request(), NOW)
    model._batcher.add(better)
    model._backlog.end_claim()
    dispatch(at)
    dispatch(at)
    assert asked(at).job is better


def test_a_withheld_job_is_read_once_nothing_else_goes_on() -> None:
    suspect = job(exclusive=True, withheld=True)
    model = served("m", suspect)
    model._held[suspect.id] = suspect
    at = Dispatcher([model])
    run = reserve(at)
    dispatch(at)
    assert asked(at) is run
    assert at.isolation.take_unread() == []
    at.isolation.answered(run, EXCLUSIVE, NOW)
    assert dispatch(at) == []
    assert at.isolation.take_unread() == [run]
    assert dispatch(at) == []
    raw = write_message(suspect.id, "m", model.queue, b"1", timeout_s=60.0)
    assert model._claims.message_read(suspect, raw) is None
    (sent,) = dispatch(at)
    assert sent.batch.jobs == [suspect]
    sent.replica.batch = None
    dispatch(at)
    assert at.isolation.take_requests() == [], "its result may be on the way to the store"
    model.let_go([suspect])
    dispatch(at)
    assert asked(at).scope == ISOLATION_ENDS


def test_an_exclusive_run_does_not_last_until_callbacks_are_sent() -> None:
    suspect = job(exclusive=True)
    model = served("m", suspect)
    model._held[suspect.id] = suspect
    at = Dispatcher([model])
    run = reserve(at)
    dispatch(at)
    at.isolation.answered(asked(at), EXCLUSIVE, NOW)
    (sent,) = dispatch(at)
    sent.replica.batch = None
    dispatch(at)
    assert at.isolation.take_requests() == []
    model._callbacks.notifying[suspect.token] = suspect
    dispatch(at)
    assert asked(at) is run
    assert run.scope == ISOLATION_ENDS


def test_a_withheld_job_waits_again_after_an_outage_while_it_was_read() -> None:
    suspect = job(exclusive=True, withheld=True)
    model = served("m", suspect)
    at = Dispatcher([model])
    run = reserve(at)
    dispatch(at)
    at.isolation.answered(asked(at), EXCLUSIVE, NOW)
    dispatch(at)
    assert model.prepared == 0
    at.isolation.connection_lost()
    assert at.isolation.exclusive is None
    assert model.prepared == 1
    assert suspect.withheld
    assert reserve(at) is not run


def test_an_exclusive_job_does_not_wait_for_a_load() -> None:
    suspect, other = job(exclusive=True), job()
    loading = served("l")
    loading.replicas[0].state = Phase.LOADING
    at = Dispatcher([served("m", suspect, other), loading])
    assert jobs_of(dispatch(at)) == [[other]]


def test_a_job_that_ended_meanwhile_holds_nothing() -> None:
    suspect, other = job(exclusive=True), job()
    model = served("m", suspect, other)
    at = Dispatcher([model])
    run = reserve(at)
    dispatch(at)
    assert asked(at) is run
    assert model._batcher.remove(suspect)
    at.isolation.answered(run, EXCLUSIVE, NOW)
    assert dispatch(at) == []
    at.isolation.answered(asked(at), FENCED, NOW)
    assert jobs_of(dispatch(at)) == [[other]]


def test_an_isolated_job_that_ended_meanwhile_makes_way_for_the_next() -> None:
    ended, suspect = job(isolated=True), job(isolated=True)
    model = served("m", ended, suspect, replicas=2)
    at = Dispatcher([model])
    dispatch(at)
    assert model._batcher.remove(ended)
    at.isolation.answered(asked(at), ISOLATED, NOW)
    assert dispatch(at) == []
    dispatch(at)
    at.isolation.answered(asked(at), ISOLATED, NOW)
    assert jobs_of(dispatch(at)) == [[suspect]]


def test_a_process_that_is_lost_before_its_exclusive_job_begins_holds_nothing() -> None:
    running, suspect, other = job(), job(exclusive=True), job()
    lost, good = served("m", suspect), served("n", running)
    at = Dispatcher([good, lost], slots=2)
    assert jobs_of(dispatch(at)) == [[running]]
    run = reserve(at)
    good.replicas[0].batch = None
    lost.replicas[0].state = Phase.RESTARTING
    good._batcher.add(other)
    assert dispatch(at) == [], "the host is no longer reserved once Redis knows it"
    assert asked(at).scope == ISOLATION_ENDS
    at.isolation.answered(run, ISOLATED, NOW)
    assert jobs_of(dispatch(at)) == [[other]]


def test_during_an_outage_isolated_jobs_wait_and_others_run() -> None:
    suspect, other = job(isolated=True), job()
    at = Dispatcher([served("m", suspect, other)])
    dispatch(at)
    run = asked(at)
    at.isolation.connection_lost()
    at.isolation.answered(run, EXCLUSIVE, NOW)
    assert jobs_of(dispatch(at, connected=False)) == [[other]]
    assert at.isolation.take_requests() == []
