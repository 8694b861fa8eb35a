"""One batch from its validation to its end, in a thread of its own.

Whatever dies here loses nothing: all that was said stands in the batch's record, and whoever has
the batch next goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from headrace.batches import record
from headrace.batches.files.store import FileStore
from headrace.batches.input_lines import Requests, read_lines
from headrace.batches.output_lines import CANCELLED, EXPIRED, REFUSED
from headrace.batches.record import LineError
from headrace.batches.sink import BatchSink, LeaseLost
from headrace.batches.source import BatchSource, failed_ids
from headrace.batches.store import BatchStore, Lease
from headrace.batches.validation import ValidationResult, validate
from headrace.client.bulk import LOOKUP_JOBS, cancel_many
from headrace.client.models import ENDED, Failure
from headrace.client.sansio import Plan
from headrace.client.sync_client import Client
from headrace.config.settings import Settings
from headrace.errors import BrokerError, FileMissing, Forbidden, HeadraceError, Unauthorized
from headrace.redis.keys import BatchField
from headrace.runs.checkpoint import Checkpoint, decode
from headrace.runs.engine import api_calls
from headrace.runs.engine.engine import Engine, row_of
from headrace.runs.engine.spec import RunSpec
from headrace.runs.interfaces import Entry, Row
from headrace.runs.range_set import RangeSet

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: How long a batch is left alone after an error that may pass.
AGAIN_S: Final = 5.0
#: A running job that is to be cancelled is looked at so often.
LOOK_S: Final = 0.5
#: Rows are saved so often while what is left over is written down.
SAVE_ROWS: Final = 10_000


class BatchExecution:
    """Drives one batch.

    Args:
        lease: the batch.
        files: the files.
        batches: the records.
        client: the API; this thread's own.
        settings: the limits.

    Attributes:
        done: it has ended, or was given back.
    """

    def __init__(
        self,
        lease: Lease,
        files: FileStore,
        batches: BatchStore,
        client: Client,
        settings: Settings,
    ) -> None:
        self.batch = lease.batch
        self.done = False
        self._lease = lease
        self._files = files
        self._batches = batches
        self._client = client
        self._settings = settings
        self._why = ""
        # Why the API lets its owner in no more; then nothing is asked of it.
        self._refused: LineError | None = None
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._late_at = time.monotonic() + self.batch.expires_at - lease.now_s
        if self.batch.status == record.CANCELLING:
            self._why = record.CANCELLED
        elif self.batch.expires_at <= lease.now_s:
            # While no runner was there: nothing more is begun.
            self._why = record.EXPIRED

    @property
    def _about(self) -> dict[str, str]:
        """The fields of a line that concerns the batch."""
        return {"api_batch": self.batch.id}

    def renew(self) -> None:
        """Say that the batch is still ours, and hear whether it is to end; often, from outside."""
        try:
            said = self._batches.save(self._lease)
        except BrokerError as error:
            logger.warning("the lease was not renewed: %s", error.message, extra=self._about)
            return
        if said is None:
            self.stop("lost")
        elif said[1] == record.CANCELLING:
            self.stop(record.CANCELLED)
        elif time.monotonic() >= self._late_at:
            self.stop(record.EXPIRED)

    def stop(self, why: str = "stopped") -> None:
        """End the work where it is.

        Args:
            why: `stopped` gives the batch back, `lost` lets it go, and CANCELLED and EXPIRED end
                it; whichever comes first.
        """
        with self._lock:
            if not self._why or why in ("lost", "stopped"):
                self._why = why
            if self._engine is not None:
                self._engine.stop()

    def run(self) -> None:
        """Drive it as far as it goes."""
        again_s: float | None = 0.0
        try:
            self._drive()
            again_s = None if self._why != "stopped" else 0.0
        except LeaseLost:
            logger.warning("the batch is another runner's by now", extra=self._about)
            again_s = None
        except _Stopped:
            again_s = 0.0 if self._why == "stopped" else None
        except HeadraceError as error:
            logger.warning(
                "the batch waits, and is tried again: %s", error.message, extra=self._about
            )
            again_s = AGAIN_S
        except Exception:
            logger.exception("the batch waits, and is tried again", extra=self._about)
            again_s = AGAIN_S
        finally:
            self.done = True
            self._client.close()
        if again_s is not None:
            self._give_back(again_s)

    def _give_back(self, again_s: float) -> None:
        try:
            self._batches.save(self._lease, lease_s=again_s)
        except BrokerError as error:
            logger.warning(
                "the batch is left until its lease ends: %s", error.message, extra=self._about
            )

    def _drive(self) -> None:
        batch, spec = self.batch, self.batch.spec
        keep_s = self._settings.file_ttl_s if spec.output_ttl_s is None else spec.output_ttl_s
        sink = BatchSink(self._files, self._batches, self._lease, keep_s, self._job_id)
        models: dict[str, str] = {}
        try:
            models = self._models()
        except (Unauthorized, Forbidden) as error:
            # The runner's own key is fresh, so that it is the owner's.
            message = error.message
            if isinstance(error, Forbidden):
                message = f"a batch wants an API key with the scopes submit and read: {message}"
            self._refused = LineError(error.code.replace("-", "_"), message)
            if not batch.total:
                self._fail(sink, self._refused)
                return
        requests = Requests(spec.endpoint, models)
        limit_bytes = self._settings.body_limit_bytes
        try:
            only = None
            if spec.failed_file_id is not None:
                only = failed_ids(self._files, spec.failed_file_id, limit_bytes)
            source = BatchSource(self._files, batch, requests, limit_bytes, only)
            if not batch.total and not self._validate(requests, sink, only):
                return
            self._work(source, sink)
        except FileMissing as error:
            of_rerun = spec.failed_file_id is not None and spec.failed_file_id in error.message
            param = "rerun_of" if of_rerun else "input_file_id"
            self._fail(sink, LineError("file_not_found", error.message, None, param))

    def _fail(self, sink: BatchSink, error: LineError) -> None:
        """End it with an error of its own; what has ended stays to be had."""
        logger.warning("the batch failed: %s", error.message, extra=self._about)
        kept, data = None, sink.load()
        if self._engine is not None:
            kept = self._engine.checkpoint
        elif data is not None:
            # A runner before this one has saved rows; without them the files would be empty.
            kept = decode(data, sink.describe())
            sink.recover(kept.mark)
        if kept is not None:
            self._cancel_rest(kept)
        sink.end(record.FAILED, {BatchField.ERRORS: msgspec.json.encode([error])})

    def _cancel_rest(self, kept: Checkpoint) -> None:
        """Cancel what a runner before this one had under way, of which no row can be written."""
        done = kept.done_set
        left = (n for n in range(kept.n, self.batch.total) if n not in done)
        while pack := list(islice(left, LOOKUP_JOBS)):
            self._batches.cancel_jobs(self.batch, [self._job_id(n) for n in pack])

    def _models(self) -> dict[str, str]:
        return {model.name: model.version for model in self._client.models()}

    def _job_id(self, n: int) -> str:
        return f"{self.batch.id}.{n}"

    def _validate(self, requests: Requests, sink: BatchSink, only: set[str] | None) -> bool:
        """Look at every line; whether there is anything to run."""
        if only is not None:
            found = ValidationResult(total=len(only))
        else:
            limit_bytes = self._settings.body_limit_bytes
            reader = self._files.open(self.batch.spec.input_file_id)
            found = validate(
                read_lines(reader, limit_bytes), requests, limit_bytes=limit_bytes,
                max_lines=self._settings.batch_max_lines, beat=self._check,
            )  # fmt: skip
        if found.errors:
            logger.info("%d lines cannot be run", found.bad, extra=self._about)
            sink.end(record.FAILED, {BatchField.ERRORS: msgspec.json.encode(found.errors)})
            return False
        self.batch.total = found.total
        fields = {BatchField.TOTAL: found.total}
        said = self._batches.save(self._lease, record.IN_PROGRESS, fields)
        if said is None:
            raise LeaseLost
        return True

    def _check(self) -> None:
        """Raises _Stopped where there is no use in going on; a cancel waits for the lines' end."""
        if self._why in ("lost", "stopped"):
            raise _Stopped

    def _work(self, source: BatchSource, sink: BatchSink) -> None:
        order = RunSpec(
            model=self.batch.spec.model or "", run_id=self.batch.id,
            in_flight=self._settings.batch_in_flight,
        )  # fmt: skip
        engine = Engine(self._client, order, source, sink)
        engine.open()
        with self._lock:
            self._engine = engine
            if self._why or self._refused:
                engine.stop()
        if not (engine.checkpoint.ended or self._why or self._refused):
            engine.run()
        self._check()
        if not engine.checkpoint.ended:
            self._write_off(engine.checkpoint, source, sink)
        if self._refused is not None and not engine.checkpoint.ended:
            self._fail(sink, self._refused)
            return
        self._say(record.FINALIZING)
        status = record.COMPLETED if engine.checkpoint.ended else self._why
        sink.end(status, {})
        told = status, sink.completed, sink.failed
        logger.info("%s, %d completed, %d failed", *told, extra=self._about)

    def _say(self, status: str) -> None:
        if self._batches.save(self._lease, status) is None:
            raise LeaseLost

    def _write_off(self, kept: Checkpoint, source: BatchSource, sink: BatchSink) -> None:
        """Give each line a row that has none: what its job came to, else why it did not run."""
        why = EXPIRED if self._why == record.EXPIRED else CANCELLED
        if self._refused is not None:
            why = REFUSED
        done, unsaved = kept.done_set, 0
        for rest in _packs(source.entries(kept.cursor, kept.n), done):
            for rows in self._rows_of(rest, why):
                sink.append(rows)
                for row in rows:
                    done.add(row.n)
                unsaved += len(rows)
            self._check()
            if unsaved >= SAVE_ROWS:
                self._save(kept, done, sink)
                unsaved = 0
        self._save(kept, done, sink)

    def _save(self, kept: Checkpoint, done: RangeSet, sink: BatchSink) -> None:
        kept.mark, kept.done = sink.sync(), done.ranges()
        kept.succeeded, kept.failed = sink.completed, sink.failed
        sink.save(kept.encode())

    def _rows_of(self, entries: list[Entry], why: Failure) -> Iterator[list[Row]]:
        """Cancel the jobs of these, and give their rows as they end."""
        waiting = {self._job_id(entry.n): entry for entry in entries}
        if self._refused is not None:
            # What runs to its end all the same is seen by `manage` alone, as of any revoked key.
            self._batches.cancel_jobs(self.batch, list(waiting))
            yield [self._row(entry, name, None, why) for name, entry in waiting.items()]
            return
        self._client.run(cancel_many(self._client.session, list(waiting)))
        while waiting:
            ids = list(waiting)
            found = self._client.run(api_calls.outcomes(self._client.session, ids))
            rows = []
            for job_id, outcome in zip(ids, found, strict=True):
                if outcome is None or outcome.status in ENDED:
                    rows.append(self._row(waiting.pop(job_id), job_id, outcome, why))
            yield rows
            if waiting:
                # A model process has them, and nobody is killed for a cancel.
                self._check()
                time.sleep(LOOK_S)

    def _row(
        self, entry: Entry, job_id: str, outcome: api_calls.Outcome | None, why: Failure
    ) -> Row:
        if outcome is None or outcome.status == "cancelled":
            return Row(entry.n, entry.key, "cancelled", error=why, carried=entry.carried)
        return row_of(entry, job_id, outcome, self._ask)

    def _ask(self, plan: Callable[..., Plan[T]], *arguments: Any) -> T:
        return self._client.run(plan(self._client.session, *arguments))


class _Stopped(Exception):
    """The runner is to stop, or has lost the batch."""


def _packs(entries: Iterator[Entry], done: RangeSet) -> Iterator[list[Entry]]:
    """Entries that have no row, by the hundred."""
    left = (entry for entry in entries if entry.n not in done)
    while pack := list(islice(left, LOOKUP_JOBS)):
        yield pack
