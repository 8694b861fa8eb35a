"""The claims of a model, until their messages, inputs and logs are read; the queue of each job.

A model has two queues, and a job is settled in the queue from which it was claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from headrace.config.model.catalog import ModelConfig
from headrace.jobs.message import Message
from headrace.jobs.values.media_types import is_json
from headrace.redis.scripts.jobs import ClaimReply
from workers.batching.batcher import Batcher
from workers.jobs.leased_job import NEVER, LeasedJob, log_of, read_jobs
from workers.jobs.settlement import Settlement, read_details, read_message
from workers.models.backlog import OWN, VERSION
from workers.models.pending_work import PendingCallbacks, PendingPayloads
from workers.models.settling import cancel

#: One claim of a job.
C = TypeVar("C", LeasedJob, Settlement)


class Claims:
    """The claimed jobs of a model that cannot run yet, and the queue of each job.

    Args:
        queues: the names of its queues, as `Backlog` numbers them.
        held: gets each job that is read, by id.
        prepare: takes a job whose input is here.

    Attributes:
        unread: the replies whose jobs have not been read.
        withheld: jobs whose message is being read, although it is withheld, by token.
        versioned: jobs were found in the queue of its version.
        misplaced: jobs that ask for another version, and must be moved to its queue.
        cancelled_tokens: of jobs that were cancelled before the reply to their claim was read.
        traced: a job belonged to a trace, so others may too.
        logs_wanted: jobs of a generator whose logs must be read before they run.
        reading_logs: all of them that do not have it, by token.
    """

    def __init__(
        self,
        config: ModelConfig,
        queues: tuple[str, str],
        held: dict[str, LeasedJob],
        batcher: Batcher[LeasedJob],
        payloads: PendingPayloads,
        callbacks: PendingCallbacks,
        prepare: Callable[[LeasedJob], None],
    ) -> None:
        self.unread: list[ClaimReply] = []
        self.withheld: dict[str, LeasedJob] = {}
        self.versioned = False
        self.misplaced: list[LeasedJob] = []
        self.cancelled_tokens: set[str] = set()
        self.traced = False
        self.logs_wanted: list[LeasedJob] = []
        self.reading_logs: dict[str, LeasedJob] = {}
        self._config = config
        self._queues = queues
        self._held = held
        self._batcher = batcher
        self._payloads = payloads
        self._callbacks = callbacks
        self._prepare = prepare
        # The claims of jobs from the queue of its version.
        self._of_version: set[str] = set()

    def add(self, reply: ClaimReply, number: int) -> None:
        """Keep the reply to a claim from a queue."""
        if number == VERSION and reply.jobs:
            self.versioned = True
            self._of_version.update(row[2].decode() for row in reply.jobs)
        self.unread.append(reply)

    def read(self, now: float) -> list[Settlement]:
        """Read the claimed jobs; return the settlements of those that will not run now.

        Withheld ones are read by `message_read`.
        """
        replies, self.unread = self.unread, []
        ended: list[Settlement] = []
        yield_s = self._config.max_yield_s or NEVER
        for reply in replies:
            ended += self._read(read_jobs(reply, now, yield_s), reply.now_us)
        return ended

    def _read(self, jobs: Iterable[tuple[LeasedJob, bytes]], now_us: int) -> list[Settlement]:
        """Read the messages of jobs; return the settlements of those that will not run now."""
        ended, name = [], self._config.name
        for job, raw in jobs:
            self._held[job.id] = job
            if not raw:
                self._batcher.add(job)  # withheld
                continue
            settlement = read_message(job, raw, name, self._queues[OWN], now_us)
            message = job.message
            if job.canvas is not None:
                self._callbacks.linked[job.token] = job
            if message is not None:
                if message.trace is not None:
                    self.traced = True
                if job.token in self.cancelled_tokens:
                    settlement = cancel(job)
            if settlement is None and self._is_misplaced(message):
                self.misplaced.append(job)
                continue
            settlement = settlement or read_details(job, self._config)
            if settlement is not None:
                ended.append(settlement)
                continue
            if message is not None and message.source:
                self._payloads.add_fetch(job, name, message.source)
            else:
                self._prepare(job)
        return ended

    def _is_misplaced(self, message: Message | None) -> bool:
        return message is not None and message.version not in ("", self._config.version)

    def begin_reading(self, job: LeasedJob) -> bool:
        """Take a withheld job to read its message; return False if it does not wait here."""
        if not self._batcher.remove(job):
            return False
        self.withheld[job.token] = job
        return True

    def message_read(self, job: LeasedJob, raw: bytes | None) -> Settlement | None:
        """Note the message of a withheld job; return its settlement if it will not run now.

        Without a message the job waits as before.
        """
        if self.withheld.pop(job.token, None) is None:
            return None  # it has ended meanwhile
        if raw is None:
            self._batcher.add(job)
            return None
        job.withheld = False
        ended = self._read([(job, raw)], job.claimed_us)
        return ended[0] if ended else None

    def input_read(self, job: LeasedJob, body: bytes) -> None:
        """Note the input of a job, which the payload store had."""
        message = job.message
        if message is None or message.source is None:
            raise RuntimeError(f"no input was requested for job {job.id}")
        kind = message.source.type
        job.ready_at = time.monotonic()
        job.content_type = "" if is_json(kind.partition(";")[0].strip().lower()) else kind
        job.message = msgspec.structs.replace(message, input=body)
        self._prepare(job)

    def want_log(self, job: LeasedJob) -> None:
        """Have the log of a generator's job read; then the job may run."""
        self.reading_logs[job.token] = job
        self.logs_wanted.append(job)

    def log_read(self, job: LeasedJob, entries: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Note the log of a generator's job, which then runs."""
        if self.reading_logs.pop(job.token, None) is None:
            return  # it has ended meanwhile
        job.log = log_of(entries)
        self._batcher.add(job)

    @property
    def reading(self) -> list[LeasedJob]:
        """The jobs whose message or log is being read."""
        return [*self.withheld.values(), *self.reading_logs.values()]

    def take_out(self, job: LeasedJob) -> bool:
        """Remove a job if its message or log is being read; return whether it was."""
        if self.withheld.pop(job.token, None) is not None:
            return True
        return self.reading_logs.pop(job.token, None) is not None

    def queue_number(self, claim: LeasedJob | Settlement) -> int:
        """Return the number of the queue from which a job was claimed."""
        return VERSION if claim.token in self._of_version else OWN

    def by_queue(self, claims: list[C]) -> list[tuple[str, list[C]]]:
        """Return claims of jobs by the queues from which they came."""
        if not self._of_version:
            return [(self._queues[OWN], claims)]
        split: tuple[list[C], list[C]] = ([], [])
        for claim in claims:
            split[self.queue_number(claim)].append(claim)
        return [pair for pair in zip(self._queues, split, strict=True) if pair[1]]

    def let_go(self, claims: Sequence[LeasedJob | Settlement]) -> None:
        """Forget the queues of these claims, which are over."""
        if self._of_version:
            self._of_version.difference_update([claim.token for claim in claims])
