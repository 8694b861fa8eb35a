"""Fetches inputs and stores results in threads, so that the consumer never waits for a store.

A job whose input cannot be fetched, or whose result cannot be stored, fails by itself after its
retries. The other jobs of its batch are not affected.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from headrace.errors import (
    BrokerError,
    HeadraceError,
    InputUnavailable,
    ResultNotStored,
    StoreError,
)
from headrace.jobs.encoding import from_kombu
from headrace.jobs.message import InputSource
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.ranges import read_parts
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import THREADS, PayloadStores
from headrace.redis.outages import is_outage
from workers.jobs.leased_job import LeasedJob
from workers.leases.manager import LeaseManager
from workers.models.pending_payloads import PendingResult, TransferOutcome
from workers.models.served_model import ServedModel
from workers.threads import BackgroundThreads

logger = logging.getLogger(__name__)

#: The pauses before a store that does not answer is tried again; then the job's own retries begin.
AGAIN_S: Final = (0.2, 1.0, 3.0)
SWEEP_S: Final = 2.0
#: The pause while Redis is away, however long that lasts.
AWAY_S: Final = 1.0
#: How long a stop waits for the transfers that have begun.
CLOSE_MAX_S: Final = 2.0


class PayloadTransfer:
    """Fetches, stores and deletes payloads for the consumer.

    Args:
        stores: the payload stores.
        input_refs: reads the operator's own files and objects.
        again_s: the pauses before a store is tried again.
    """

    def __init__(
        self, stores: PayloadStores, input_refs: InputRefs, again_s: tuple[float, ...] = AGAIN_S
    ) -> None:
        self._stores = stores
        self._input_refs = input_refs
        self._again_s = again_s
        # A worker without large payloads has one thread, for the sweep.
        self._threads: BackgroundThreads[Callable[[], None], tuple[ServedModel, TransferOutcome]]
        self._threads = BackgroundThreads(self._run, "headrace-payloads", THREADS)
        self._closing = threading.Event()
        self._sweeping = False
        self._sweep_at = 0.0

    def fileno(self) -> int:
        """Return the descriptor for a selector: readable when a transfer has ended."""
        return self._threads.fileno()

    def take(self, model: ServedModel) -> None:
        """Begin the transfers that a model needs."""
        work = model.take_payload_work()
        if work is None:
            return
        for job in work.fetches:
            self._threads.submit(partial(self._guarded, self._fetch, model, job, None))
        for result in work.results:
            self._threads.submit(partial(self._guarded, self._store, model, result.job, result))
        if work.ended:
            self._threads.submit(partial(self._delete, work.ended))

    def sweep(self, now: float) -> None:
        """Delete payloads that no job needs, every `SWEEP_S` seconds."""
        if now >= self._sweep_at and not self._sweeping:
            self._sweep_at = now + SWEEP_S
            self._sweeping = True
            self._threads.submit(self._sweep)

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
        self._stores.close()

    @staticmethod
    def _run(task: Callable[[], None]) -> None:
        task()

    def _guarded(
        self,
        transfer: Callable[[LeasedJob, PendingResult | None], TransferOutcome],
        model: ServedModel,
        job: LeasedJob,
        result: PendingResult | None,
    ) -> None:
        """Run a transfer and deliver its outcome in any case; without one the job stays held."""
        try:
            outcome = transfer(job, result)
        except Exception as error:
            logger.exception("payload transfer failed", extra={"job": job.id})
            kind = InputUnavailable if result is None else ResultNotStored
            why = kind(f"the payload could not be moved: {type(error).__name__}")
            outcome = TransferOutcome(job, result=result, error=why, retryable=True)
        self._threads.deliver((model, outcome))

    def _patiently(self, call: Callable[[], bytes]) -> bytes:
        pauses = iter(self._again_s)
        while not self._closing.is_set():
            try:
                return call()
            except (StoreError, BrokerError) as error:
                # Without Redis the job could not fail either.
                away = is_outage(error.__cause__)
                pause_s = AWAY_S if away else next(pauses, None)
                if pause_s is None:
                    raise
                logger.warning("%s; next try in %g s", error.message, pause_s)
            self._closing.wait(pause_s)
        return call()

    def _fetch(self, job: LeasedJob, _: PendingResult | None) -> TransferOutcome:
        source = job.message.source if job.message is not None else None
        if source is None:
            raise RuntimeError(f"job {job.id} has no input source to fetch")
        try:
            body = self._patiently(lambda: self._read(source))
        except (StoreError, BrokerError, PayloadMissing) as error:
            # A missing payload may be a missing mount.
            unavailable = InputUnavailable(f"the input cannot be fetched: {error.message}")
            return TransferOutcome(job, error=unavailable, retryable=True)
        except HeadraceError as error:
            return TransferOutcome(job, error=error)
        return TransferOutcome(job, body)

    def _read(self, source: InputSource) -> bytes:
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

    def _store(self, job: LeasedJob, result: PendingResult | None) -> TransferOutcome:
        if result is None:
            raise RuntimeError(f"job {job.id} has no result to store")
        entry, body = result.entry, plain_result(result.result, result.content_type)

        def put() -> bytes:
            self._stores.put(entry, body, bounded=False)
            return b""

        try:
            self._patiently(put)
        except HeadraceError as error:
            lost = ResultNotStored(f"the result cannot be stored: {error.message}")
            return TransferOutcome(job, result=result, error=lost, retryable=True)
        return TransferOutcome(job, result=result)

    def _delete(self, entries: list[PayloadEntry]) -> None:
        try:
            self._stores.drop(*entries)
        except HeadraceError as error:
            logger.warning("payloads not deleted; the sweep will retry: %s", error.message)

    def _sweep(self) -> None:
        try:
            while not self._closing.is_set() and self._stores.sweep():
                pass
        except HeadraceError as error:
            logger.warning("payload sweep failed; it will be retried: %s", error.message)
        finally:
            self._sweeping = False


def plain_result(result: bytes, content_type: str) -> bytes:
    """Return a result as `GET .../result` returns it, from the model process' JSON."""
    body = from_kombu(result) if content_type else None
    return result if body is None else body
