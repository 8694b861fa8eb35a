"""Executes one batch from its validation to its end, in a thread of its own.

A crash loses nothing: the progress is in the batch's record, and the next runner that leases the
batch continues there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from extensions.openai.batches import store
from extensions.openai.batches.files import FileStore
from extensions.openai.batches.input import (
    BatchSource,
    Requests,
    ValidationResult,
    failed_ids,
    read_lines,
    validate,
)
from extensions.openai.batches.output import CANCELLED, EXPIRED, REFUSED, BatchLeaseLost, BatchSink
from extensions.openai.batches.store import BatchStore, Lease, LineError
from extensions.openai.redis.keys import BatchField
from headrace.client.bulk import LOOKUP_JOBS, cancel_many
from headrace.client.models import ENDED
from headrace.client.sansio import Plan
from headrace.client.sync_client import Client, run_plan
from headrace.config.settings import Settings
from headrace.errors import BrokerError, FileMissing, Forbidden, HeadraceError, Unauthorized
from headrace.jobs.job import JobFailure
from headrace.runs import api_calls
from headrace.runs.checkpoint import Checkpoint, decode
from headrace.runs.engine import Engine, row_of
from headrace.runs.interfaces import Entry, Row, RunSpec
from headrace.runs.range_set import RangeSet

T = TypeVar("T")

#: Seconds until a batch is tried again after a transient error.
RETRY_S: Final = 5.0
#: Seconds between two lookups of running jobs that were cancelled.
POLL_S: Final = 0.5
#: How many rows of lines that did not run are saved at a time.
SAVE_ROWS: Final = 10_000


class BatchExecution:
    """The execution of one batch.

    No other thread uses its client.

    Attributes:
        done: the batch has ended or was released.
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
        self._log = logging.LoggerAdapter(logging.getLogger(__name__), {"api_batch": self.batch.id})
        self._why = ""
        # Why the API refuses the owner; then it is sent no requests.
        self._refused: LineError | None = None
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._expires_at = time.monotonic() + self.batch.expires_at - lease.now_s
        if self.batch.status == store.CANCELLING:
            self._why = store.CANCELLED
        elif self.batch.expires_at <= lease.now_s:
            # The window ended while no runner was available: nothing more is started.
            self._why = store.EXPIRED

    def renew(self) -> None:
        """Renew the lease, and find out whether the batch has to end; called by the runner."""
        try:
            saved = self._batches.save(self._lease)
        except BrokerError as error:
            self._log.warning("lease not renewed: %s", error.message)
            return
        if saved is None:
            self.stop("lost")
        elif saved[1] == store.CANCELLING:
            self.stop(store.CANCELLED)
        elif time.monotonic() >= self._expires_at:
            self.stop(store.EXPIRED)

    def stop(self, why: str = "stopped") -> None:
        """Stop the execution.

        Args:
            why: `stopped` releases the batch, `lost` abandons it; CANCELLED and EXPIRED end it,
                unless another reason came before.
        """
        with self._lock:
            if not self._why or why in ("lost", "stopped"):
                self._why = why
            if self._engine is not None:
                self._engine.stop()

    def run(self) -> None:
        """Execute the batch as far as possible."""
        retry_s: float | None = None
        try:
            with suppress(_Stopped):
                self._execute()
            if self._why == "stopped":
                retry_s = 0.0
        except BatchLeaseLost:
            self._log.warning("lease lost, another runner has the batch")
        except HeadraceError as error:
            self._log.warning("batch will be retried: %s", error.message)
            retry_s = RETRY_S
        except Exception:  # noqa: BLE001 - it is logged
            self._log.exception("batch will be retried")
            retry_s = RETRY_S
        finally:
            self.done = True
            self._client.close()
        if retry_s is not None:
            self._release(retry_s)

    def _release(self, retry_s: float) -> None:
        try:
            self._batches.save(self._lease, lease_s=retry_s)
        except BrokerError as error:
            self._log.warning("batch not released, its lease will expire: %s", error.message)

    def _execute(self) -> None:
        batch, spec = self.batch, self.batch.spec
        keep_s = self._settings.file_ttl_s if spec.output_ttl_s is None else spec.output_ttl_s
        sink = BatchSink(self._files, self._batches, self._lease, keep_s, self._job_id)
        models: dict[str, list[str]] = {}
        try:
            for model in self._client.models():
                models[model.name] = model.versions or [model.version]
        except (Unauthorized, Forbidden) as error:
            # The runner's own key is valid, so this concerns the owner's.
            message = error.message
            if isinstance(error, Forbidden):
                message = f"a batch needs an API key with the scopes submit and read: {message}"
            self._refused = LineError(error.code.replace("-", "_"), message)
            if not batch.total:
                self._fail(sink, self._refused)
                return
        requests = Requests(spec.endpoint, models, self._parameters(models))
        limit_bytes = self._settings.body_limit_bytes
        try:
            only = None
            if spec.failed_file_id is not None:
                only = failed_ids(self._files, spec.failed_file_id, limit_bytes)
            source = BatchSource(self._files, batch, requests, limit_bytes, only)
            if not batch.total and not self._validate(requests, sink, only):
                return
            self._run_engine(source, sink)
        except FileMissing as error:
            of_rerun = spec.failed_file_id is not None and spec.failed_file_id in error.message
            param = "rerun_of" if of_rerun else "input_file_id"
            self._fail(sink, LineError("file_not_found", error.message, None, param))

    def _parameters(self, models: Collection[str]) -> Collection[str]:
        name = self.batch.spec.model
        if name is None or name not in models:
            return ()
        return self._client.model(name).parameters or ()

    def _fail(self, sink: BatchSink, error: LineError) -> None:
        """End the batch with an error; rows that exist are kept."""
        self._log.warning("batch failed: %s", error.message)
        checkpoint, data = None, sink.load()
        if self._engine is not None:
            checkpoint = self._engine.checkpoint
        elif data is not None:
            # The files keep the rows that an earlier runner has saved.
            checkpoint = decode(data, sink.describe())
            sink.recover(checkpoint.mark)
        if checkpoint is not None:
            self._cancel_rest(checkpoint)
        sink.end(store.FAILED, {BatchField.ERRORS: msgspec.json.encode([error])})

    def _cancel_rest(self, checkpoint: Checkpoint) -> None:
        """Cancel the jobs that have no row; it can no longer be written."""
        done = checkpoint.done_set
        left = (n for n in range(checkpoint.n, self.batch.total) if n not in done)
        while page := list(islice(left, LOOKUP_JOBS)):
            self._batches.cancel_jobs(self.batch, [self._job_id(n) for n in page])

    def _job_id(self, n: int) -> str:
        return f"{self.batch.id}.{n}"

    def _validate(self, requests: Requests, sink: BatchSink, only: set[str] | None) -> bool:
        """Check every line; return whether the batch can run."""
        if only is not None:
            found = ValidationResult(total=len(only))
        else:
            limit_bytes = self._settings.body_limit_bytes
            reader = self._files.open(self.batch.spec.input_file_id)
            found = validate(
                read_lines(reader, limit_bytes), requests, limit_bytes=limit_bytes,
                max_lines=self._settings.batch_max_lines, check_stop=self._check_stop,
            )  # fmt: skip
        if found.errors:
            self._log.info("batch has %d invalid lines", found.bad)
            sink.end(store.FAILED, {BatchField.ERRORS: msgspec.json.encode(found.errors)})
            return False
        self.batch.total = found.total
        fields = {BatchField.TOTAL: found.total}
        if self._batches.save(self._lease, store.IN_PROGRESS, fields) is None:
            raise BatchLeaseLost
        return True

    def _check_stop(self) -> None:
        """Raise _Stopped if the runner stops or has lost the batch; a cancel does not stop this."""
        if self._why in ("lost", "stopped"):
            raise _Stopped

    def _run_engine(self, source: BatchSource, sink: BatchSink) -> None:
        spec = RunSpec(
            model=self.batch.spec.model or "", run_id=self.batch.id,
            in_flight=self._settings.batch_in_flight, deadline_s=self.batch.expires_at,
        )  # fmt: skip
        engine = Engine(self._client, spec, source, sink)
        engine.open()
        with self._lock:
            self._engine = engine
            if self._why or self._refused:
                engine.stop()
        if not (engine.checkpoint.ended or self._why or self._refused):
            engine.run()
        self._check_stop()
        if not engine.checkpoint.ended:
            self._write_rest(engine.checkpoint, source, sink)
        if self._refused is not None and not engine.checkpoint.ended:
            self._fail(sink, self._refused)
            return
        if self._batches.save(self._lease, store.FINALIZING) is None:
            raise BatchLeaseLost
        status = store.COMPLETED if engine.checkpoint.ended else self._why
        sink.end(status, {})
        self._log.info("%s: %d completed, %d failed", status, sink.completed, sink.failed)

    def _write_rest(self, checkpoint: Checkpoint, source: BatchSource, sink: BatchSink) -> None:
        """Write a row for each line that has none: its job's outcome, or why it did not run."""
        why = EXPIRED if self._why == store.EXPIRED else CANCELLED
        if self._refused is not None:
            why = REFUSED
        done, unsaved = checkpoint.done_set, 0
        entries = source.entries(checkpoint.cursor, checkpoint.n)
        left = (entry for entry in entries if entry.n not in done)
        while rest := list(islice(left, LOOKUP_JOBS)):
            for rows in self._rows_of(rest, why):
                sink.append(rows)
                for row in rows:
                    done.add(row.n)
                unsaved += len(rows)
            self._check_stop()
            if unsaved >= SAVE_ROWS:
                self._save(checkpoint, done, sink)
                unsaved = 0
        self._save(checkpoint, done, sink)

    def _save(self, checkpoint: Checkpoint, done: RangeSet, sink: BatchSink) -> None:
        checkpoint.mark, checkpoint.done = sink.sync(), done.ranges()
        checkpoint.succeeded, checkpoint.failed = sink.completed, sink.failed
        sink.save(checkpoint.encode())

    def _rows_of(self, entries: list[Entry], why: JobFailure) -> Iterator[list[Row]]:
        """Cancel the jobs of these entries, and yield their rows as they end."""
        waiting = {self._job_id(entry.n): entry for entry in entries}
        if self._refused is not None:
            # Only the scope `manage` sees jobs of a revoked key that still end.
            self._batches.cancel_jobs(self.batch, list(waiting))
            yield [self._row(entry, job_id, None, why) for job_id, entry in waiting.items()]
            return
        run_plan(self._client, cancel_many(self._client.session, list(waiting)))
        while waiting:
            ids = list(waiting)
            found = run_plan(self._client, api_calls.outcomes(self._client.session, ids))
            rows = []
            for job_id, outcome in zip(ids, found, strict=True):
                if outcome is None or outcome.status in ENDED:
                    rows.append(self._row(waiting.pop(job_id), job_id, outcome, why))
            yield rows
            if waiting:
                # These jobs are in a model process, which is not killed for a cancel.
                self._check_stop()
                time.sleep(POLL_S)

    def _row(
        self, entry: Entry, job_id: str, outcome: api_calls.Outcome | None, why: JobFailure
    ) -> Row:
        if outcome is None or outcome.status == "cancelled":
            return Row(entry.n, entry.key, "cancelled", error=why, carried=entry.carried)
        return row_of(entry, job_id, outcome, self._perform)

    def _perform(self, plan: Callable[..., Plan[T]], *arguments: Any) -> T:
        return run_plan(self._client, plan(self._client.session, *arguments))


class _Stopped(Exception):
    """The runner stops, or has lost the batch."""
