"""Payloads for the routes: kept before their job is submitted, read while they are sent.

The stores block; they are asked from threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from api.http.bodies import Payload
from api.http.messages import ClientGone, Receive, ResponseCutShort, Write, hung_up
from api.submission.job_request import ValidatedRequest
from headrace.config.settings import Settings
from headrace.errors import BrokerUnavailable, HeadraceError, JobNotFound
from headrace.jobs.job import StoredResult
from headrace.jobs.message import InputSource
from headrace.payloads.index import GRACE_S
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import THREADS, PayloadStores, build_stores

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A submit that comes so long after its payload is not sent: the sweep may be about to delete it.
KEPT_MAX_S: Final = GRACE_S / 2


class StoredInput(NamedTuple):
    """Where the input of a job lies that is about to be submitted.

    Attributes:
        entry: its payload; None where the input is the operator's own.
        at: when it was entered, in monotonic seconds.
    """

    source: InputSource
    entry: PayloadEntry | None
    at: float


class InputStore:
    """The stores, for one event loop."""

    def __init__(self, stores: PayloadStores, origins: InputRefs) -> None:
        self._stores = stores
        self._origins = origins
        self._threads = ThreadPoolExecutor(THREADS, "headrace-payloads")

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def keep(self, asked: ValidatedRequest) -> StoredInput:
        """Write the input of a job to its store, or look at the file that it names.

        Raises:
            StoreFull, StoreUnavailable, BrokerError: it cannot be stored.
            InvalidRequest, InputForbidden, PayloadTooLarge: it may not be named, or not be read.
        """
        at = time.monotonic()
        payload = asked.payload
        if payload is None:
            source = asked.source
            if source is None:
                raise RuntimeError("the job has an input that goes in its message")
            size = await self._run(self._origins.look, source.origin)
            return StoredInput(
                InputSource(origin=source.origin, type=source.type, size=size), None, at
            )
        entry = self._entry_of(asked)
        await self._run(self._stores.put, entry, payload.body)
        return _kept(entry, payload, at)

    @property
    def together(self) -> bool:
        """Whether the inputs of several jobs are best written in one call."""
        return self._stores.together

    async def keep_all(
        self, several: Sequence[tuple[ValidatedRequest, Payload]]
    ) -> list[StoredInput | HeadraceError]:
        """Write the inputs of several jobs in one call; for each where it lies, or why not."""
        at = time.monotonic()
        entries = [self._entry_of(asked) for asked, _ in several]
        payloads = [payload for _, payload in several]
        bodies = [payload.body for payload in payloads]
        errors = await self._run(self._stores.put_all, list(zip(entries, bodies, strict=True)))
        return [
            error or _kept(entry, payload, at)
            for entry, payload, error in zip(entries, payloads, errors, strict=True)
        ]

    def _entry_of(self, asked: ValidatedRequest) -> PayloadEntry:
        return self._stores.new_entry(asked.identity.job_id, asked.model.name, "i")

    def check_age(self, kept: StoredInput) -> None:
        """Raises BrokerUnavailable where a payload was written too long ago to be relied on."""
        if kept.entry is not None and time.monotonic() - kept.at > KEPT_MAX_S:
            raise BrokerUnavailable("this API process was held up", hint="Submit it again.")

    async def drop(self, kept: StoredInput) -> None:
        """The submit was refused, or the job known before: whether it is needed, the record says.

        What cannot be deleted now is left to the sweep.
        """
        if kept.entry is None:
            return
        try:
            await self._run(self._stores.drop, kept.entry)
        except HeadraceError as error:
            logger.warning("a payload is left to the sweep: %s", error.message)

    async def read(self, stored: StoredResult, start: int, length: int) -> bytes:
        """Some of a result, at least one byte.

        Raises:
            JobNotFound: it is gone, and so is its job.
            StoreUnavailable, BrokerError: no answer.
        """
        store = self._stores.of(stored.ref)
        try:
            return await self._run(store.read, stored.ref, start, min(length, store.chunk_bytes))
        except PayloadMissing:
            raise JobNotFound(
                "the result is not in the payload store any more",
                hint="Its result_ttl has passed, or it was deleted; submit the job again.",
            ) from None

    async def send(
        self, write: Write, receive: Receive, stored: StoredResult, first: bytes, end: int, at: int
    ) -> None:
        """Send a result from `at` to before `end`, chunk by chunk; the first was read already.

        Raises:
            ClientGone: nobody reads it.
            CutShort: the rest cannot be read.
        """
        gone = asyncio.create_task(hung_up(receive))
        try:
            chunk = first
            while True:
                await write(chunk)
                at += len(chunk)
                if at >= end:
                    return
                if gone.done():
                    raise ClientGone
                try:
                    chunk = await self.read(stored, at, end - at)
                except HeadraceError as error:
                    logger.warning("a result was cut short: %s", error.message)
                    raise ResponseCutShort from None
                if not chunk:
                    raise ResponseCutShort
        finally:
            gone.cancel()

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, call, *arguments)


def _kept(entry: PayloadEntry, payload: Payload, at: float) -> StoredInput:
    return StoredInput(
        InputSource(ref=entry.ref, type=payload.kind, size=len(payload.body)), entry, at
    )


def build_input_store(settings: Settings, redis_url: str) -> InputStore:
    """The payloads of one API process; they connect when first used.

    Raises:
        ConfigError: the settings of the store are wrong.
    """
    return InputStore(build_stores(settings, redis_url), InputRefs(settings, THREADS))
