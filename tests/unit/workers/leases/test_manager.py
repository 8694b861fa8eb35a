"""What a worker lets go of when Redis has answered, or refuses to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from headrace.config.model.catalog import ModelConfig
from headrace.config.settings import Settings
from headrace.errors import ResultNotStored
from headrace.jobs.message import InputSource
from headrace.payloads.store import PayloadEntry
from headrace.redis.clock import US_PER_S
from headrace.redis.scripts import NAMES, Command, script
from headrace.redis.scripts.jobs import FENCED, ClaimReply
from tests.harness.clients.messages import write_message
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import Settlement, cancelled
from workers.leases.connection import PipelinedConnection
from workers.leases.manager import LeaseManager, WorkerObserver
from workers.models.held import PendingResult, TransferOutcome
from workers.models.served_model import ServedModel

NOW = 1000.0
SETTINGS = Settings(lease_ttl_s=15)


class Server:
    """A connection whose answers the test gives."""

    connected = True

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.sent: list[Command] = []

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands

    def receive(self, commands: Sequence[Command]) -> list[Any]:
        return self.answers

    def more(self) -> bool:
        return False


class Observer:
    """Remembers what it heard."""

    def __init__(self) -> None:
        self.codes: list[Any] = []

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        self.codes += codes

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        self.codes += outcomes


@pytest.fixture
def model() -> ServedModel:
    """It holds two jobs whose inputs are fetched."""
    model = ServedModel(ModelConfig(name="m", handler="echo", max_batch_size=4), 0, [])
    flat: list[bytes] = []
    for job_id in ("a", "b"):
        source = InputSource(ref="redis:" + job_id * 32)
        raw = write_message(job_id, "m", "headrace.m", b"1", timeout_s=60.0, source=source)
        flat += [raw, job_id.encode(), f"token-{job_id}".encode(), b"", b"1", b"", b"", b"0"]
    model.claim_answered(ClaimReply([b"1", *[b"0"] * 4, 0, *flat]), NOW)
    model.read_claims(NOW)
    return model


def answered(model: ServedModel, release: bool, answer: Any) -> list[Any]:
    """Settle or release all jobs of the model; return what the observer got."""
    server, observer = Server(), Observer()
    leases = LeaseManager(
        "w",
        cast(PipelinedConnection, server),
        SETTINGS,
        cast(WorkerObserver, observer),
    )
    leases.connection_restored([model], NOW)
    jobs = list(model._held.values())
    if release:
        leases.release(model, jobs, "crash")
    else:
        leases.settle(model, [cancelled(job) for job in jobs])
    leases.flush(NOW)
    server.answers = [answer]
    leases.read_replies(NOW)
    return observer.codes


def claims(config: ModelConfig) -> list[tuple[str, str]]:
    """The scripts that a claim sends, and their queues."""
    model, server = ServedModel(config, 0, []), Server()
    leases = LeaseManager(
        "w",
        cast(PipelinedConnection, server),
        SETTINGS,
        cast(WorkerObserver, Observer()),
    )
    leases.connection_restored([model], NOW)
    model._backlog.claim_answered(0, [9, 0, 0, 9], NOW)
    leases.claim(model, [4, 4, 4, 4], NOW)
    leases.flush(NOW)
    names = {script(name).sha: name for name in NAMES}
    return [(names[str(sent[1])], str(sent[3])) for sent in server.sent]


def test_a_claim_is_arranged_in_the_same_write_only_for_a_schedule_by_tokens() -> None:
    plain = ModelConfig(name="m", handler="echo")
    assert claims(plain) == [("jobs/claim", "headrace.m")]
    by_tokens = ModelConfig(name="m", handler="echo", schedule="tokens")
    assert claims(by_tokens) == [("queues/arrange", "headrace.m"), ("jobs/claim", "headrace.m")]


def test_who_stood_still_reaps_nothing_for_as_long_as_a_lease(model: ServedModel) -> None:
    """Its neighbours may have stood still with it, and have yet to renew."""
    server = Server()
    leases = LeaseManager(
        "w",
        cast(PipelinedConnection, server),
        SETTINGS,
        cast(WorkerObserver, Observer()),
    )
    leases.connection_restored([model], NOW)

    def until_us(now: float) -> int:
        """Until when, by Redis' clock, a sweep that is said now may reap."""
        leases.sweep(model, now)
        leases.flush(now)
        server.answers = [[b"0", b"0", b"-1", b"0", b"0", b"0", b"0", b"%d" % (now * US_PER_S), 0]]
        leases.read_replies(now)
        *_, reap_until_us, _losses, _jobs, _untold, _own = server.sent[-1]
        return int(reap_until_us)

    assert [until_us(NOW + after) > 0 for after in (0, 14, 16)] == [False, False, True]
    leases.delay_reaping(NOW + 40)
    assert [until_us(NOW + after) > 0 for after in (40, 54, 56)] == [False, False, True]


@pytest.mark.parametrize(("release", "heard"), [(False, FENCED), (True, b"fenced")])
def test_of_a_refused_call_nothing_stays_behind(
    model: ServedModel, release: bool, heard: Any
) -> None:
    assert answered(model, release, ResponseError("WRONGTYPE")) == [heard, heard]
    assert not model._held
    assert not model._pending_payloads._entries
    _, _, ended = model._pending_payloads.take_work()
    assert [entry.job_id for entry in ended] == ["a", "b"]


def test_a_cancelled_job_whose_result_cannot_be_stored_was_cancelled(model: ServedModel) -> None:
    job = model._held["a"]
    job.dropped = "cancelled"
    result = PendingResult(job, cancelled(job), PayloadEntry("redis:r", "a", "m", "r"), b"1")
    error = ResultNotStored("the store is full")
    outcome = TransferOutcome(job, result=result, error=error, retryable=True)
    settlement = model.transfer_done(outcome)
    assert settlement is not None
    assert not settlement.retried
