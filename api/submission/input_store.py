"""Store inputs before their job is submitted, and read stored results while they are sent.

The payload stores block, so that every call runs on a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple, TypeVar

from api.http.bodies import Payload
from api.http.messages import ClientGone, HangUp, Receive, ResponseCutShort, Write
from api.submission.job_request import ValidatedRequest
from headrace.errors import BrokerUnavailable, HeadraceError, JobNotFound, StoreUnavailable
from headrace.jobs.job import StoredResult
from headrace.jobs.message import InputSource
from headrace.payloads.index import GRACE_S
from headrace.payloads.input_ref import InputRefs
from headrace.payloads.store import PayloadEntry, PayloadMissing
from headrace.payloads.stores import THREADS, PayloadStores

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds after which a stored input is not submitted: the sweep may be about to delete it.
STORED_MAX_S: Final = GRACE_S / 2
#: How long a request waits for its store, in seconds, and how many bytes give it one second more.
ANSWER_MAX_S: Final = 10.0
SLOW_BYTES_PER_S: Final = 1024 * 1024
#: Seconds after which no more of several inputs are stored: each would wait for a slow store.
KEEP_MAX_S: Final = 10.0


class StoredInput(NamedTuple):
    """The place at which the input of a job is stored.

    Attributes:
        entry: its payload; None if the input is the operator's own file.
        at: when it was stored, in monotonic seconds.
    """

    source: InputSource
    entry: PayloadEntry | None
    at: float


class InputStore:
    """The payload stores, which it closes, and the files that requests may name."""

    def __init__(self, stores: PayloadStores, input_refs: InputRefs) -> None:
        self._stores = stores
        self._input_refs = input_refs
        self._threads = ThreadPoolExecutor(THREADS, "headrace-payloads")

    def close(self) -> None:
        """Start no more calls and close the stores."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def keep(self, request: ValidatedRequest, *, spare: bool = False) -> StoredInput:
        """Write the input of a job to its store, or check the file that it names.

        With `spare`, half of max_payload_memory_bytes stays free for other inputs.

        Raises:
            StoreFull, StoreUnavailable, BrokerError: it cannot be stored.
            InvalidRequest, InputForbidden, PayloadTooLarge: the file may not be named, or cannot
                be read.
        """
        at = time.monotonic()
        payload = request.payload
        if payload is None:
            source = request.source
            if source is None:
                raise RuntimeError("the input of this job is in its message")
            size = await self._run(self._input_refs.look, source.origin)
            return StoredInput(
                InputSource(origin=source.origin, type=source.type, size=size), None, at
            )
        entry = self._entry_of(request)
        put = partial(self._stores.put, spare=spare)
        await self._run(put, entry, payload.body, moves=len(payload.body))
        return _stored(entry, payload, at)

    async def keep_all(
        self, requests: Sequence[ValidatedRequest]
    ) -> list[StoredInput | HeadraceError | None]:
        """Keep inputs in one call; return the place or error of each, None if busy for too long."""
        slots, until = asyncio.Semaphore(THREADS), time.monotonic() + KEEP_MAX_S

        async def keep(request: ValidatedRequest) -> StoredInput | HeadraceError | None:
            async with slots:
                if time.monotonic() >= until:
                    return None
                try:
                    return await self.keep(request)
                except HeadraceError as error:
                    return error

        joined = [one.payload is not None and self._stores.default.together for one in requests]
        apart = [one for one, is_joined in zip(requests, joined, strict=True) if not is_joined]
        others = iter(await asyncio.gather(*map(keep, apart)))
        written = iter(await self._keep_joined(list(compress(requests, joined))))
        return [next(written if is_joined else others) for is_joined in joined]

    async def _keep_joined(
        self, requests: Sequence[ValidatedRequest]
    ) -> list[StoredInput | HeadraceError]:
        at = time.monotonic()
        new = [(self._entry_of(one), one.payload) for one in requests if one.payload is not None]
        if not new:
            return []
        pairs = [(entry, payload.body) for entry, payload in new]
        moves = sum(len(body) for _, body in pairs)
        try:
            errors = await self._run(self._stores.default.put_all, pairs, moves=moves)
        except StoreUnavailable as error:
            return [error for _ in new]
        return [
            error or _stored(entry, payload, at)
            for (entry, payload), error in zip(new, errors, strict=True)
        ]

    def _entry_of(self, request: ValidatedRequest) -> PayloadEntry:
        owner = request.caller.key_id
        return self._stores.new_entry(request.identity.job_id, request.model.name, "i", owner)

    def check_age(self, stored: StoredInput) -> None:
        """Raise BrokerUnavailable if the payload is so old that the sweep may delete it."""
        if stored.entry is not None and time.monotonic() - stored.at > STORED_MAX_S:
            raise BrokerUnavailable(
                "this API process was too slow to submit the job", hint="Submit it again."
            )

    async def drop(self, stored: StoredInput) -> None:
        """Delete the input of a refused or repeated submit, unless the job's record names it.

        The sweep deletes later what cannot be deleted now.
        """
        if stored.entry is None:
            return
        try:
            await self._run(self._stores.drop, stored.entry)
        except HeadraceError as error:
            logger.warning("payload not deleted; the sweep will retry: %s", error.message)

    async def read(self, stored: StoredResult, start: int, length: int) -> bytes:
        """Read 1 to `length` bytes of a result.

        Raises:
            JobNotFound: the result is gone, or ends before `start`.
            StoreError, BrokerError: the store is unavailable.
        """
        store = self._stores.of(stored.ref)
        count = min(length, store.chunk_bytes)
        try:
            chunk = await self._run(store.read, stored.ref, start, count, moves=count)
        except PayloadMissing:
            raise JobNotFound(
                "the result is no longer in the payload store",
                hint="Its result_ttl has passed, or it was deleted; submit the job again.",
            ) from None
        if not chunk:
            raise JobNotFound(
                f"the payload store has only {start} of {stored.size} bytes of the result",
                hint="Something else has changed it there; submit the job again.",
            )
        return chunk

    async def read_whole(self, stored: StoredResult) -> bytes:
        """Read a result from its start to its end; errors as for `read`."""
        chunks, at = [], 0
        while at < stored.size:
            chunks.append(await self.read(stored, at, stored.size - at))
            at += len(chunks[-1])
        return b"".join(chunks)

    async def send(
        self, write: Write, receive: Receive, stored: StoredResult, first: bytes, end: int, at: int
    ) -> None:
        """Send a result from `at` to before `end`, chunk by chunk; `first` was read already.

        It raises ResponseCutShort if the rest cannot be read, and ClientGone.
        """
        with HangUp(receive) as client:
            chunk = first
            while True:
                await write(chunk)
                at += len(chunk)
                if at >= end:
                    return
                if client.gone:
                    raise ClientGone
                try:
                    chunk = await self.read(stored, at, end - at)
                except HeadraceError as error:
                    logger.warning("result cut short: %s", error.message)
                    raise ResponseCutShort from None

    async def _run(self, call: Callable[..., T], *arguments: Any, moves: int = 0) -> T:
        """Call a store on a thread; `moves` is how many bytes it reads or writes.

        A write that takes too long continues; the sweep deletes the payload that it may write.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_MAX_S + moves / SLOW_BYTES_PER_S):
                return await loop.run_in_executor(self._threads, call, *arguments)
        except TimeoutError:
            raise StoreUnavailable(
                "the payload store does not answer", hint="Try again in a moment."
            ) from None


def _stored(entry: PayloadEntry, payload: Payload, at: float) -> StoredInput:
    return StoredInput(
        InputSource(ref=entry.ref, type=payload.kind, size=len(payload.body)), entry, at
    )
