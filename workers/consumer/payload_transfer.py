"""Payloads fetched and stored by threads, beside the consumer, which never waits for a store.

Knows stores and files. What it has done it tells through a pipe that the consumer's selector
watches. A job whose input cannot be fetched, or whose result cannot be stored, ends by itself,
after its retries; its batch-mates hear nothing of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

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
from workers.models.pending_payloads import PendingResult
from workers.models.served_model import ServedModel

logger = logging.getLogger(__name__)

#: What a store that gives no answer is asked again after; then the job's own retries begin.
AGAIN_S: Final = (0.2, 1.0, 3.0)
SWEEP_S: Final = 2.0
#: ... and while Redis is away, for as long as that lasts.
AWAY_S: Final = 1.0
#: How long a stop waits for what was begun.
CLOSE_MAX_S: Final = 2.0
#: How the text of a result that is bytes begins, as the model process writes it.


class Transferred(NamedTuple):
    """One item whose payload was moved, or not.

    Attributes:
        body: the input, where one was fetched.
        load: what was to be stored, if that it was.
        error: why it was not moved.
        retryable: whether the job may be tried again.
    """

    model: ServedModel
    job: LeasedJob
    body: bytes | None = None
    load: PendingResult | None = None
    error: HeadraceError | None = None
    retryable: bool = False


class PayloadTransfer:
    """Moves payloads for the consumer.

    Args:
        stores: where they lie.
        origins: the operator's own files and objects.
        again_s: after which pauses a store is asked again.
    """

    def __init__(
        self, stores: PayloadStores, origins: InputRefs, again_s: tuple[float, ...] = AGAIN_S
    ) -> None:
        self._stores = stores
        self._origins = origins
        self._again_s = again_s
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: deque[Transferred] = deque()
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._closing = threading.Event()
        self._sweeping = False
        self._sweep_at = 0.0

    def fileno(self) -> int:
        """For selectors: readable when something was moved."""
        return self._out

    def take(self, model: ServedModel) -> None:
        """Take over what a lane has for it."""
        cargo = model.pending_payloads
        fetches, cargo.fetches = cargo.fetches, []
        loads, cargo.results = cargo.results, []
        ended, cargo.ended = cargo.ended, []
        for job in fetches:
            self._start(partial(self._guarded, self._fetch, model, job, None))
        for load in loads:
            self._start(partial(self._guarded, self._store, model, load.job, load))
        if ended:
            self._start(partial(self._drop, ended))

    def sweep(self, now: float) -> None:
        """Delete what nobody needs any more, once in a while."""
        if now >= self._sweep_at and not self._sweeping:
            self._sweep_at = now + SWEEP_S
            self._sweeping = True
            self._start(self._sweep)

    def take_finished(self) -> list[Transferred]:
        """What was moved since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._out, 4096):
                pass
        found = []
        while self._done:
            found.append(self._done.popleft())
        return found

    def deliver(self, leases: LeaseManager) -> None:
        """Give what was moved to its lanes, and settle what can end now."""
        for model, job, body, load, error, retryable in self.take_finished():
            model.pending_payloads.transfer_done(job)
            if model.held.get(job.id) is not job:
                # Another's by now, or held under a newer claim: this one is over.
                model.pending_payloads.forget([job])
            elif job.dropped and load is None:
                continue  # settled meanwhile
            elif error is not None:
                logger.warning(
                    "%s", error.message, extra={"model": model.config.name, "job": job.id}
                )
                settlement = model.transfer_failed(job, error, retryable=retryable)
                leases.settle(model, [settlement])
            elif load is not None:
                leases.settle(model, [load.settlement])
            elif body is not None:
                model.input_arrived(job, body)

    def close(self) -> None:
        """Do what was begun, if that takes a moment only, and nothing more.

        A thread that a store keeps waiting ends with the process.
        """
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + CLOSE_MAX_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._closing.set()
        self._stores.close()
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self._out)
            os.close(self._in)

    def _start(self, task: Callable[[], None]) -> None:
        # A worker that never sees a large payload has one thread, for the sweep.
        if not self._idle.acquire(blocking=False) and len(self._threads) < THREADS:
            name = f"headrace-porter-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            self._idle.release()

    def _guarded(
        self,
        move: Callable[[ServedModel, LeasedJob, PendingResult | None], Transferred],
        model: ServedModel,
        job: LeasedJob,
        load: PendingResult | None,
    ) -> None:
        """Move, and tell in any case: an item that nobody tells of would be held for ever."""
        try:
            moved = move(model, job, load)
        except Exception as error:
            logger.exception("a payload was not moved", extra={"job": job.id})
            kind = InputUnavailable if load is None else ResultNotStored
            why = kind(f"the payload could not be moved: {type(error).__name__}")
            moved = Transferred(model, job, load=load, error=why, retryable=True)
        self._done.append(moved)
        # So full a pipe wakes the consumer anyway.
        with contextlib.suppress(BlockingIOError):
            os.write(self._in, b"x")

    def _patiently(self, call: Callable[[], bytes]) -> bytes:
        pauses = iter(self._again_s)
        while not self._closing.is_set():
            try:
                return call()
            except (StoreError, BrokerError) as error:
                # Without Redis the job could not be told to have failed either.
                away = is_outage(error.__cause__)
                pause_s = AWAY_S if away else next(pauses, None)
                if pause_s is None:
                    raise
                logger.warning("%s; asked again in %g s", error.message, pause_s)
            self._closing.wait(pause_s)
        return call()

    def _fetch(self, model: ServedModel, job: LeasedJob, _: PendingResult | None) -> Transferred:
        source = job.message.source if job.message is not None else None
        if source is None:
            raise RuntimeError("an item without a source was to be fetched")
        try:
            body = self._patiently(lambda: self._read(source))
        except (StoreError, BrokerError, PayloadMissing) as error:
            # A payload that is not there may be a mount that is not there.
            unavailable = InputUnavailable(f"the input cannot be fetched: {error.message}")
            return Transferred(model, job, error=unavailable, retryable=True)
        except HeadraceError as error:
            return Transferred(model, job, error=error)
        return Transferred(model, job, body)

    def _read(self, source: InputSource) -> bytes:
        if source.origin:
            return self._origins.read(source.origin)
        if source.parts:
            return read_parts(self._stores, source.parts)
        body = self._stores.of(source.ref).get(source.ref)
        if source.size >= 0 and len(body) != source.size:
            raise InputUnavailable(
                f"the input has {len(body)} bytes in the payload store, and had {source.size}"
            )
        return body

    def _store(self, model: ServedModel, job: LeasedJob, load: PendingResult | None) -> Transferred:
        if load is None:
            raise RuntimeError("nothing was given to be stored")
        body = plain_result(load.result, load.kind)

        def put() -> bytes:
            self._stores.put(load.entry, body, bounded=False)
            return b""

        try:
            self._patiently(put)
        except HeadraceError as error:
            lost = ResultNotStored(f"the result cannot be stored: {error.message}")
            return Transferred(model, job, load=load, error=lost, retryable=True)
        return Transferred(model, job, load=load)

    def _drop(self, entries: list[PayloadEntry]) -> None:
        try:
            self._stores.drop(*entries)
        except HeadraceError as error:
            logger.warning("payloads are left to the sweep: %s", error.message)

    def _sweep(self) -> None:
        try:
            while not self._closing.is_set() and self._stores.sweep():
                pass
        except HeadraceError as error:
            logger.warning("the sweep of payloads waits: %s", error.message)
        finally:
            self._sweeping = False


def plain_result(result: bytes, kind: str) -> bytes:
    """The bytes of a result as `GET …/result` gives them, from the model process' JSON."""
    body = from_kombu(result) if kind else None
    return result if body is None else body
