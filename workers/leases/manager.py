"""A worker's leases in Redis: claims, settlements, releases, renewals and sweeps of its models.

Settlements and releases are resent after an outage; the fencing token makes a duplicate harmless.
If the reply to a claim was lost, the jobs that it leased are released on reconnect.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from headrace.config.settings import Settings
from headrace.observability.profiles import READ_CHANGES
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fast_connection import TRAFFIC
from headrace.redis.outages import DISCONNECTED, MAX_S, Backoff
from headrace.redis.scripts import Arg, Command, script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import queues as queue_scripts
from headrace.redis.scripts.jobs import (
    EXPIRE_MAX_JOBS,
    FENCED,
    HOST_TAKEN,
    POSTPONED,
    SETTLED,
    ClaimReply,
    Run,
)
from workers.jobs.leased_job import NEVER, Batch, LeasedJob
from workers.jobs.settlement import Settlement
from workers.leases.connection import ANSWER_MAX_S, Outbox, PipelinedConnection
from workers.models.backlog import VERSION
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)

_NEVER = float("inf")


class ReapClock:
    """Delays reaping after an outage, and maps this process' clock to that of Redis.

    All holders of leases that were cut off by the same outage need a lease's time to renew.
    So nothing is reaped before `lease_ttl_s` seconds after the connection, which is also after the
    server's own start.
    """

    def __init__(self, lease_ttl_s: float) -> None:
        self._lease_ttl_s = lease_ttl_s
        self._after = _NEVER
        # Redis' clock at this process' second 0.
        self._server_zero_us: int | None = None

    def connected(self, now: float) -> None:
        """Start the delay, as the connection is new."""
        self._after = now + self._lease_ttl_s
        self._server_zero_us = None

    def disconnected(self) -> None:
        """Reap nothing until the next connection."""
        self._after = _NEVER

    def delay(self, now: float) -> None:
        """Start the delay again: this process or Redis was stopped, and so may have been others."""
        self._after = max(self._after, now + self._lease_ttl_s)

    def set_server_time(self, server_us: int, now: float) -> None:
        """Note what Redis' clock shows at `now`, in microseconds."""
        self._server_zero_us = server_us - int(now * US_PER_S)

    def until_us(self, now: float) -> int:
        """Return until when, by Redis' clock, a sweep that is sent at `now` may reap; 0 for never.

        The limit is near. Over a slow network, or at a server that hung, a sweep may arrive a
        minute late. By then all leases have expired, and their holders could not renew them.
        """
        if now < self._after or self._server_zero_us is None:
            return 0
        return self._server_zero_us + int((now + self._lease_ttl_s / 3) * US_PER_S)


#: Replicas are leased this much longer than jobs: they are renewed once a second.
REPLICA_SLACK_US: Final = 2 * US_PER_S
#: How many entries of a log are read in a call; few of them have more than 256 KiB.
LOG_PAGE: Final = 64
#: The most bytes of pieces that wait for Redis, before none are read from model processes any more.
PIECES_MAX_BYTES: Final = 8 << 20
#: A worker that has just renewed its replicas may take another before the others.
REPLICA_FRESH_US: Final = 3 * US_PER_S


class WorkerObserver(Protocol):
    """Gets what happens to batches and jobs, and returns the commands that publish it.

    Attributes:
        events_at: when `events` must be called at the latest.
    """

    events_at: float

    def started(self, model: ServedModel, batch: Batch) -> None:
        """Take a batch that was sent to a model process."""

    def finished(self, batch: Batch, settlements: Iterable[Settlement]) -> None:
        """Take a batch that has left its model process; no settlements if it was released."""

    def preempted(self, batch: Batch) -> None:
        """Take a staged batch that was returned because another model runs first."""

    def settled(
        self, model: ServedModel, settlements: Sequence[Settlement], codes: Sequence[Any]
    ) -> None:
        """Note the reply of jobs/settle.lua to each settlement; the model still holds the jobs."""

    def released(self, jobs: Sequence[LeasedJob], outcomes: Sequence[Any]) -> None:
        """Note the reply of jobs/release.lua about each job."""

    def events(self, now: float) -> Sequence[Command]:
        """Return the commands that publish task events, if they are due."""

    def serve(self, model: ServedModel) -> None:
        """Take a model that the worker serves from now on."""

    def report(self, model: ServedModel) -> Mapping[str, Any]:
        """Return what `inspect stats` shows of a model's events."""

    def close(self) -> None:
        """Send what is left; the worker ends."""


class LeaseManager:
    """A worker's leases over one connection; `owner`, its incarnation, is written into each."""

    def __init__(
        self,
        owner: str,
        connection: PipelinedConnection,
        settings: Settings,
        observer: WorkerObserver,
    ) -> None:
        self.owner = owner
        self.settings, self._kept = settings, settings.failures_kept
        self._observer = observer
        self._connection = connection
        self._outbox = Outbox(connection)
        self._claim_lost = False
        self._piece_bytes = 0
        # Fast enough to renew the leases before workers that are back already may reap them.
        self._backoff = Backoff(min(MAX_S, settings.lease_ttl_s / 3))
        self.reconnect_at = self._restored_at = 0.0
        self._reap_clock = ReapClock(settings.lease_ttl_s)
        self._lease_us = int(settings.lease_ttl_s * US_PER_S)
        self._restored = False
        # In a container this is the container's name: what dies together has the same name.
        self._host = socket.gethostname()

    @property
    def connected(self) -> bool:
        """Whether Redis can be reached."""
        return self._restored and self._connection.connected

    @property
    def busy(self) -> bool:
        """Whether calls wait to be sent or for a reply."""
        return self._outbox.busy

    @property
    def reply_due_at(self) -> float:
        """When the oldest unanswered call counts as lost."""
        return self._outbox.reply_due_at

    def connect(self) -> None:
        """Connect, which may take seconds; then call `connection_restored` on the loop's thread.

        Raises:
            redis.RedisError, OSError: Redis is away.
        """
        self._connection.connect()

    def connection_restored(self, models: Iterable[ServedModel], now: float) -> None:
        """Go on after an outage, or begin."""
        self._restored, self._restored_at = True, now
        self._reap_clock.connected(now)
        logger.info("connected to Redis")
        if self._claim_lost:
            # Two models can hold jobs of a queue while one replaces the other.
            known: dict[str, list[str]] = {}
            losses: dict[str, str] = {}
            for model in models:
                model.claim_lost()
                for queue in model.queues:
                    losses[queue] = self._losses(model)
                    known.setdefault(queue, []).extend(job.token for job in model.held)
            for queue, tokens in known.items():
                self.send(
                    job_scripts.release_owner(queue, "free", losses[queue], self.owner, *tokens)
                )
        self._claim_lost = False

    def connection_lost(self, now: float, error: Exception) -> None:
        """Keep what must be resent, and plan the next attempt to connect."""
        TRAFFIC.errors += 1
        if self._restored and now > self._restored_at + MAX_S:
            # A server that takes no writes answers the first calls, and then loses the connection.
            self._backoff.reset()
        delay_s = self._backoff.next_s()
        logger.warning("Redis is away, next try in %.2f s: %s", delay_s, error)
        self._claim_lost = True
        self._outbox.reset()
        self._restored = False
        self._connection.close()
        self.reconnect_at = now + delay_s

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def claim(self, model: ServedModel, room: Sequence[int], now: float) -> None:
        """Claim jobs for the room that `claim_request` returned."""

        def claimed(number: int, reply: Any, at: float) -> None:
            model.claim_answered(ClaimReply(reply), at, number)

        # After this wait the claim takes a job before better jobs; one such job at a time.
        yield_us = 0 if model.overdue(now) else int(model.config.max_yield_s * US_PER_S)
        for number, share in model.claim_sent(room, now):
            queue = model.queues[number]
            if model.config.counts_tokens:
                # In the same write, so that this claim takes the jobs that are next.
                self._outbox.add(script("queues/arrange").on(queue, *share))
            claim = job_scripts.claim(
                queue, model.config.name, model.config.version, share,
                lease_us=self._lease_us, owner=self.owner, result_ttl_s=self.settings.result_ttl_s,
                job_index_max=self.settings.job_index_max, yield_us=yield_us,
                failures_kept=self._kept,
            )  # fmt: skip
            self._outbox.add(claim, partial(claimed, number), model.claim_refused)

    def settle(self, model: ServedModel, settlements: list[Settlement]) -> None:
        """End jobs, which stay held (and renewed) until Redis has replied.

        Jobs with callbacks are held back until these are sent.
        """
        settlements = model.hold_for_callbacks(settlements)
        if settlements:
            for queue, ended in model.by_queue(settlements):
                self._settle(model, queue, ended)

    def _settle(self, model: ServedModel, queue: str, settlements: list[Settlement]) -> None:
        def settled(reply: Any, now: float) -> None:
            self._observer.settled(model, settlements, reply)
            for settlement, code in zip(settlements, reply, strict=True):
                if code != SETTLED:
                    self._unusual(model, settlement, int(code), now)
            model.let_go(settlements)

        def refused() -> None:
            # The outcome is unknown, as if another worker had the jobs.
            self._observer.settled(model, settlements, [FENCED] * len(settlements))
            model.let_go(settlements)

        settle = job_scripts.settle(queue, model.config.version, settlements, self._kept)
        self._outbox.add(settle, settled, refused, resend=True)

    @staticmethod
    def _unusual(model: ServedModel, settlement: Settlement, code: int, now: float) -> None:
        if code == FENCED:
            logger.warning(
                "lease lost: another worker has claimed the job; result discarded",
                extra={"model": model.config.name, "job": settlement.id},
            )
        elif code == POSTPONED:
            due_at = now + int(settlement.retry_us) / US_PER_S
            model.next_due_at = min(model.next_due_at, due_at)

    def release(
        self,
        model: ServedModel,
        jobs: list[LeasedJob],
        mode: str,
        how: str = "",
        traceback: str = "",
        runs: Mapping[str, Run] | None = None,
    ) -> None:
        """Return jobs to the head of their queue, in the order in which they were claimed.

        Args:
            mode: `free` (an orderly release), `alone`, `crash` or `lost`; see
                `job_scripts.release`.
            how: how their model process ended, with its stacks as `traceback`.
            runs: how the jobs ran, by token, if they had begun.
        """
        if jobs:
            for queue, released in model.by_queue(jobs):
                losses, last_first = self._losses(model), released[::-1]
                release = job_scripts.release(queue, mode, losses, last_first, how, traceback, runs)
                self._release(model, last_first, release)

    def _release(self, model: ServedModel, last_first: list[LeasedJob], release: Command) -> None:
        def released(reply: Any, _now: float) -> None:
            self._observer.released(last_first, reply)
            model.released(last_first[::-1])

        def refused() -> None:
            self._observer.released(last_first, [b"fenced"] * len(last_first))
            model.let_go(last_first[::-1])

        self._outbox.add(release, released, refused, resend=True)

    def move_misplaced(self, model: ServedModel) -> None:
        """Move jobs that ask for another version to the queue of that version, uncharged."""
        jobs = model.take_misplaced()

        def moved(group: list[LeasedJob], *_: Any) -> None:
            model.let_go(group)

        for queue, claimed in model.by_queue(jobs) if jobs else ():
            by_version: dict[str, list[LeasedJob]] = {}
            for job in claimed:
                version = job.message.version if job.message is not None else ""
                by_version.setdefault(version, []).append(job)
            for version, group in by_version.items():
                move = job_scripts.move(queue, version, group)
                self._outbox.add(move, partial(moved, group), partial(moved, group), resend=True)

    def isolate(self, job: LeasedJob, scope: str, answered: Callable[[int, float], None]) -> None:
        """Mark in Redis that a job begins to run isolated, or that it has left its process.

        Args:
            scope: IN_PROCESS, RESERVED, IN_WORKER or IN_EITHER; ISOLATION_ENDS removes the mark.
            answered: called with the reply and the time; with HOST_TAKEN if Redis refuses the call.
        """
        isolate = script("jobs/isolate").call([], job.id, job.token, scope, self._host)
        self._outbox.add(
            isolate,
            lambda reply, now: answered(int(reply), now),
            lambda: answered(HOST_TAKEN, time.monotonic()),
        )

    def read_message(self, model: ServedModel, job: LeasedJob) -> None:
        """Read the message of a withheld job, which waits for it."""

        def read(reply: Any, _now: float) -> None:
            if reply is None and model.take_out(job):
                # Another program has removed it. The release ends the job.
                self.release(model, [job], "free")
            elif reply is not None and (ended := model.message_read(job, reply)) is not None:
                self.settle(model, [ended])
            self.move_misplaced(model)

        def refused() -> None:
            model.message_read(job, None)

        queue = model.queue_of(job)
        self._outbox.add(("HGET", keys.held(queue), job.id), read, refused)

    def read_logs(self, model: ServedModel) -> None:
        """Read the logs of a generator's jobs, which wait for them."""
        for job in model.take_wanted_logs():
            self._read_log(model, job, [])

    def _read_log(self, model: ServedModel, job: LeasedJob, entries: list[Any]) -> None:
        """Read what follows the first entries of a log, page by page."""

        def read(reply: Any, _now: float) -> None:
            entries.extend(job_scripts.read_entries(reply))
            if len(reply) < LOG_PAGE:
                model.log_read(job, entries)
            elif model.waits_for_log(job):
                self._read_log(model, job, entries)

        after = entries[-1][0] if entries else 0
        page = ("XRANGE", keys.pieces(job.id), f"{after + 1}-0", "+", "COUNT", LOG_PAGE)
        self._outbox.add(page, read, partial(model.log_read, job, ()), resend=True)

    def renew(
        self, model: ServedModel, answered: Callable[[list[LeasedJob], list[Any]], None]
    ) -> None:
        """Renew all leases of the model.

        `answered` is called with the jobs and, for each, RENEWED, CANCEL_REQUESTED or FENCED.
        """

        def renewed(jobs: list[LeasedJob], reply: Any, _now: float) -> None:
            answered(jobs, reply)

        if model.held:
            for queue, jobs in model.by_queue(list(model.held)):
                renew = job_scripts.renew(queue, self._lease_us, jobs)
                self._outbox.add(renew, partial(renewed, jobs), lambda: answered([], []))

    def sweep(self, model: ServedModel, now: float) -> None:
        """Promote delayed jobs that are due, and reap expired leases; of all versions' queues."""
        # The reply sets it again; until then it would cause a sweep in each turn.
        model.next_due_at = NEVER
        self._sweep(model, model.queue, self._losses(model), now)

    def sweep_left_out(self, queue: str, losses: str, now: float) -> None:
        """Do the same for a model that this worker does not serve, by the name of its queue."""
        self._sweep(None, queue, losses, now)

    def _sweep(self, model: ServedModel | None, queue: str, losses: str, now: float) -> None:
        def swept(reply: Any, at: float) -> None:
            result = queue_scripts.read_sweep(reply)
            self._reap_clock.set_server_time(result.now_us, at)
            if model is not None:
                model.swept(queue, result, at)
            for used in result.used:
                self._sweep(model, used, losses, at)

        own = model.queues[VERSION] if model is not None and queue == model.queue else ""
        sweep = queue_scripts.sweep(
            queue, reap_until_us=self._reap_clock.until_us(now), losses=losses,
            orphaned_max=model.orphaned_room if model is not None else 0, own=own,
        )  # fmt: skip
        self._outbox.add(sweep, swept)

    def expire_waiting(self) -> None:
        """End the waiting jobs of all models whose `expires` has passed."""

        def ended(reply: Any, _now: float) -> None:
            looked_at, _ = job_scripts.read_expire(reply)
            if looked_at == EXPIRE_MAX_JOBS:
                self.expire_waiting()

        self._outbox.add(job_scripts.expire(), ended)

    def read_registry(self, changed: Callable[[Sequence[bytes | None]], None]) -> None:
        """Read the registry's revision and the newest profile, and pass the reply on."""
        self._outbox.add(READ_CHANGES, lambda reply, _now: changed(reply))

    def find_work(
        self, queues: Sequence[str], with_work: Callable[[list[str], float], None], now: float
    ) -> None:
        """Find which queues have work, among those that this worker does not serve.

        Args:
            queues: groups of queues, each at most FIND_WORK_MAX_QUEUES with a space between.
            with_work: gets the queues with work, and the time, once for each group.
        """

        def replied(reply: Any, at: float) -> None:
            now_us, *names = reply
            # A worker without a loaded model sweeps nothing.
            self._reap_clock.set_server_time(int(now_us), at)
            with_work([name.decode() for name in names], at)

        until_us = self._reap_clock.until_us(now)
        for group in queues:
            self._outbox.add(script("queues/find_work").call([], until_us, group), replied)

    def lease_replicas(
        self, others: int, arguments: Sequence[Arg], granted: Callable[[Any], None], now: float
    ) -> None:
        """Renew the leases of replicas; pass on what workers/lease_replicas.lua replied.

        Args:
            others: how many replicas the worker runs without a lease.
            arguments: those of the script for each model.
        """
        lease_us = self._lease_us + REPLICA_SLACK_US
        lease = script("workers/lease_replicas").call(
            [], self.owner, lease_us, self._reap_clock.until_us(now), REPLICA_FRESH_US, others,
            *arguments,
        )  # fmt: skip
        self._outbox.add(lease, lambda reply, _now: granted(reply))

    def delay_reaping(self, now: float) -> None:
        """Reap nothing for a lease_ttl: other workers may have been paused like this worker."""
        self._reap_clock.delay(now)

    def report(self, commands: Sequence[Command], reported: Callable[[int, bool], None]) -> None:
        """Send the worker's report; pass on how many workers there are, and if this one drains."""
        first, *others = commands
        self._outbox.add(first, lambda reply, _now: reported(int(reply[0]), bool(reply[1])))
        for command in others:
            self.send(command)

    def send(self, command: Command, *, resend: bool = False) -> None:
        """Send a command with the next write; its reply is ignored.

        With `resend` it is sent again after an outage.
        """
        self._outbox.add(command, resend=resend)

    def append_pieces(self, model: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append pieces to the logs of jobs, after an outage too; see `job_scripts`."""
        size = sum(len(pieces) + len(more) for *_, pieces, more in rows)
        self._piece_bytes += size

        def answered(*_: Any) -> None:
            self._piece_bytes -= size

        self._outbox.add(job_scripts.append_pieces(model, rows), answered, answered, resend=True)

    @property
    def pieces_full(self) -> bool:
        """Whether so many pieces wait for Redis that no more should come."""
        return self._piece_bytes >= PIECES_MAX_BYTES

    def socket(self) -> Any:
        """Return the socket for a selector; None without a connection."""
        return self._connection.socket() if self.connected else None

    def check_timeout(self, now: float) -> None:
        """Give the connection up if a reply is overdue: half-open, it reports no error."""
        if now >= self.reply_due_at:
            self.connection_lost(now, TimeoutError(f"no answer in {ANSWER_MAX_S:g} s"))

    def flush(self, now: float) -> None:
        """Send the calls that wait, unless enough writes are unanswered."""
        if not self.connected:
            return
        try:
            self._outbox.flush(now)
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def read_replies(self, now: float) -> None:
        """Read the replies that have come, and handle them."""
        try:
            while (took_s := self._outbox.receive(now)) is not None:
                if took_s > self.settings.lease_ttl_s / 3:
                    # A server this slow has kept the other workers from renewing too.
                    self._reap_clock.delay(now)
                if not self._outbox.more:
                    return
        except DISCONNECTED as error:
            self.connection_lost(now, error)

    def _losses(self, model: ServedModel) -> str:
        return model.losses(self.settings.max_deliveries, self._kept)
