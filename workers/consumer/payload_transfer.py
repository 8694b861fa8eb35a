"""Fetches inputs and stores results in threads, so that the consumer never waits for a store.

A job whose input cannot be fetched, or whose result cannot be stored, fails by itself after its
retries. The other jobs of its batch are not affected.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import (
    BrokerError,
    HeadraceError,
    InputUnavailable,
    ResultNotStored,
    StoreError,
)
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import THREADS, PayloadStores, read_parts
from headrace.redis.outages import is_outage
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import LeaseManager
from workers.models.held import PendingResult, TransferOutcome
from workers.models.served_model import ServedModel
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

#: The pauses before a store that does not answer is tried again; then the job's own retries begin.
AGAIN_S: Final = (0.2, 1.0, 3.0)
#: They begin earlier if a payload has taken so long, in seconds.
PATIENCE_S: Final = 10.0
SWEEP_S: Final = 2.0
#: The pause while Redis is away, however long that lasts.
AWAY_S: Final = 1.0
#: How long a stop waits for the transfers that have begun.
CLOSE_MAX_S: Final = 2.0


@dataclass(slots=True)
class _Transfer:
    """One payload to move; `result` is the one to store, None if the input must be fetched."""

    model: ServedModel
    job: LeasedJob
    result: PendingResult | None
    pauses_s: list[float]
    began: float = field(default_factory=time.monotonic)


class PayloadTransfer:
    """Fetches, stores and deletes payloads for the consumer."""

    def __init__(
        self, stores: PayloadStores, input_refs: InputRefs, again_s: tuple[float, ...] = AGAIN_S
    ) -> None:
        self._stores = stores
        self._input_refs = input_refs
        self._again_s = again_s
        self._threads = BackgroundThreads[
            _Transfer | list[PayloadEntry], tuple[ServedModel, TransferOutcome]
        ](self._work, "headrace-payloads", THREADS)
        # A thread of its own: what the sweep deletes may be the room that transfers wait for.
        self._sweeper = BackgroundThreads[str, None](self._sweep, "headrace-sweep")
        self._closing = threading.Event()
        self._sweeping = False
        self._sweep_at = 0.0

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable when a transfer has ended."""
        return self._threads.fileno()

    def begin(self, model: ServedModel) -> None:
        """Begin the transfers that a model needs."""
        fetches, results, ended = model.take_payload_work()
        for job in fetches:
            self._threads.submit(_Transfer(model, job, None, list(self._again_s)))
        for result in results:
            self._threads.submit(_Transfer(model, result.job, result, list(self._again_s)))
        if ended:
            self._threads.submit(ended)

    def sweep(self, now: float) -> None:
        """Delete payloads that no job needs, every `SWEEP_S` seconds."""
        if now >= self._sweep_at and not self._sweeping:
            self._sweep_at = now + SWEEP_S
            self._sweeping = True
            self._sweeper.submit("sweep")

    def deliver(self, leases: LeaseManager) -> None:
        """Give the models the transfers that have ended, and settle the jobs that end with them."""
        for model, outcome in self._threads.take_results():
            settlement = model.transfer_done(outcome)
            if settlement is not None:
                leases.settle(model, [settlement])

    def close(self) -> None:
        """Wait a moment for the transfers that have begun, and close the stores."""
        self._threads.close(CLOSE_MAX_S)
        self._closing.set()
        self._sweeper.close(CLOSE_MAX_S)
        self._stores.close()

    def _work(self, task: _Transfer | list[PayloadEntry]) -> float | None:
        """Do a task; return the seconds after which to try it again, or None."""
        if not isinstance(task, _Transfer):
            self._delete(task)
            return None
        try:
            outcome = self._moved(task)
        except (StoreError, BrokerError) as error:
            pause_s = _pause_s(task, error)
            if pause_s is not None:
                logger.warning("%s; next try in %g s", error.message, pause_s)
                return pause_s
            outcome = _failed(task, error.message)
        except Exception as error:
            # Without an outcome the job would stay held.
            logger.exception("payload transfer failed", extra={"job": task.job.id})
            outcome = _failed(task, f"{type(error).__name__} in the worker")
        self._threads.deliver((task.model, outcome))
        return None

    def _moved(self, task: _Transfer) -> TransferOutcome:
        """Fetch or store the payload of a job; a StoreError or BrokerError means: try it again."""
        job, result = task.job, task.result
        try:
            if result is None:
                return TransferOutcome(job, self._fetch(job))
            body = result.result
            self._stores.put(result.entry, body, bounded=False)
        except (StoreError, BrokerError):
            raise
        except PayloadMissing as error:
            # It may be a missing mount.
            return _failed(task, error.message)
        except HeadraceError as error:
            if result is not None:
                return _failed(task, error.message)
            return TransferOutcome(job, error=error)
        return TransferOutcome(job, result=result)

    def _fetch(self, job: LeasedJob) -> bytes:
        source = job.message.source if job.message is not None else None
        if source is None:
            raise RuntimeError(f"job {job.id} has no input source to fetch")
        if source.origin:
            return self._input_refs.read(source.origin)
        if source.parts:
            return read_parts(self._stores, source.parts)
        body = self._stores.of(source.ref).get(source.ref)
        if source.size >= 0 and len(body) != source.size:
            raise InputUnavailable(
                f"the input has {len(body)} bytes in the payload store, and had {source.size}"
            )
        return body

    def _delete(self, entries: list[PayloadEntry]) -> None:
        try:
            self._stores.drop(*entries)
        except HeadraceError as error:
            logger.warning("payloads not deleted; the sweep will retry: %s", error.message)
        except Exception:
            # Each such error would cost a thread.
            logger.exception("payloads not deleted; the sweep will retry")

    def _sweep(self, _: str) -> None:
        try:
            while not self._closing.is_set() and self._stores.sweep():
                pass
        except HeadraceError as error:
            logger.warning("payload sweep failed; it will be retried: %s", error.message)
        except Exception:
            logger.exception("payload sweep failed; it will be retried")
        finally:
            self._sweeping = False


def _pause_s(task: _Transfer, error: StoreError | BrokerError) -> float | None:
    """Return the seconds after which to try a transfer again; None if its job's own retries begin.

    Without Redis the job could not fail either, so that is waited for. Other stores fail for good:
    a disk that is full, or a file that cannot be read.
    """
    if isinstance(error, BrokerError) and is_outage(error.__cause__):
        return AWAY_S
    if not task.pauses_s or time.monotonic() - task.began > PATIENCE_S:
        return None
    return task.pauses_s.pop(0)


def _failed(task: _Transfer, why: str) -> TransferOutcome:
    error: HeadraceError
    if task.result is None:
        error = InputUnavailable(f"the input cannot be fetched: {why}")
    else:
        error = ResultNotStored(f"the result cannot be stored: {why}")
    return TransferOutcome(task.job, result=task.result, error=error, retryable=True)
