"""The account of payloads in Redis: what was written for which job, and what is to be deleted.

An entry is made before its payload and removed after it, so that whatever dies in between leaves an
entry behind, which the sweep finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from headrace.errors import BrokerFull, PayloadTooLarge, StoreFull
from headrace.payloads.store import PayloadEntry, read_entry
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import PAYLOAD_PREFIX
from headrace.redis.outages import translate
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Command
from headrace.redis.scripts import payloads as payload_scripts
from headrace.redis.scripts import pipelines as pipeline_scripts

#: A payload whose job is not known so long after it was entered was given up by its sender.
GRACE_S: Final = 900
#: How many entries one call of the sweep looks at: bounds how long it holds Redis.
SWEEP_MAX_ENTRIES: Final = 100
#: max_payload_memory_bytes where neither the setting nor Redis' maxmemory says.
DEFAULT_MAX_BYTES: Final = 1024 * 1024 * 1024
#: What is longer is not passed through Lua, which copies it while all others wait.
SCRIPT_MAX_BYTES: Final = 1024 * 1024
#: How long Redis' maxmemory is taken to be what it was.
MAXMEMORY_S: Final = 60.0


class PayloadIndex(ScriptClient):
    """The account. Its methods block and may be called from any thread.

    Args:
        client: Redis, in its own pool of connections.
        max_bytes: how much may lie in Redis; None takes half of its maxmemory, or 1 GiB.
    """

    def __init__(self, client: redis.Redis, max_bytes: int | None = None) -> None:
        super().__init__(client)
        self._max_bytes = max_bytes
        self._found_bytes = DEFAULT_MAX_BYTES
        self._found_at = float("-inf")

    def note(self, entry: PayloadEntry, body: bytes | None = None, *, bounded: bool = True) -> None:
        """Enter a payload; with its body, also write it to Redis.

        Raises:
            StoreFull: more would lie in Redis than max_payload_memory_bytes; nothing was written.
            PayloadTooLarge: it alone is more than that.
            BrokerError: Redis does not answer, or is full.
        """
        size = 0 if body is None else len(body)
        limit = str(self._fitting(size)) if bounded and body is not None else ""
        if body is None:
            self.call(_put(entry, limit, size))
            return
        in_script = size <= SCRIPT_MAX_BYTES
        put = _put(entry, limit, size, body if in_script else None)
        taken, total = self.call(put)
        # Results whose time is over are gone from Redis, but stand in the account until a sweep.
        if not taken and self.due()[0]:
            taken, total = self.call(put)
        if taken and not in_script:
            self._write(entry, body, limit, bounded=bounded)
        elif not taken:
            raise StoreFull(
                f"payloads take {int(total)} bytes of Redis; with {len(body)} more they would "
                f"exceed {limit}",
                hint="Inputs count until their jobs have ended, results until their result_ttl. "
                "Try again later, raise max_payload_memory_bytes, or set payload_store to "
                "file or s3.",
            )

    def note_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[bool]:
        """Enter and write several payloads in one round trip; for each whether that was done.

        Whoever is told False says `note`, and hears why.

        Raises:
            BrokerError: Redis does not answer; some may have been written.
        """
        limit = str(self.max_bytes())
        small = [one for one in payloads if len(one[1]) <= SCRIPT_MAX_BYTES]
        commands = [_put(entry, limit, len(body), body) for entry, body in small]
        answers = iter(self.replies(commands) if commands else ())
        return [len(body) <= SCRIPT_MAX_BYTES and _taken(next(answers)) for _, body in payloads]

    def _fitting(self, size: int) -> int:
        """How many bytes may lie in Redis; a payload that is larger will never have room."""
        limit = self.max_bytes()
        if size > limit:
            raise PayloadTooLarge(
                f"the input has {size} bytes; all payloads in Redis together may have {limit} "
                "(max_payload_memory_bytes)",
                hint="Send a smaller input, raise max_payload_memory_bytes "
                "(HEADRACE_MAX_PAYLOAD_MEMORY_BYTES), or set payload_store to file or s3.",
            )
        return limit

    def _write(self, entry: PayloadEntry, body: bytes, limit: str, *, bounded: bool) -> None:
        """Write a payload that was entered and counted."""
        try:
            self.execute("SET", PAYLOAD_PREFIX + entry.ref.partition(":")[2], body)
        except BrokerFull:
            if bounded:
                self.look(entry)
                raise
            # Only a script that begins by removing passes at maxmemory.
            self.call(_put(entry, limit, len(body), body))

    def look(self, *entries: PayloadEntry) -> list[PayloadEntry]:
        """Have those of these payloads deleted that nobody needs.

        Those that lie in Redis are gone then; the others are given back, for the caller to delete
        and to `forget`.
        """
        return self._looked(0, *(entry.text for entry in entries))[1]

    def due(self) -> tuple[int, list[PayloadEntry]]:
        """As `look`, for payloads whose time to be looked at has come; also how many these were.

        At most SWEEP_MAX_ENTRIES are looked at.
        """
        return self._looked(SWEEP_MAX_ENTRIES)

    def hand_over(self, old: PayloadEntry, new: PayloadEntry) -> None:
        """Let a job's result be that of another job, which is about to name it.

        Raises:
            BrokerError: Redis does not answer, or is full.
        """
        self.call(pipeline_scripts.hand_over(old.text, new.text))

    def forget(self, entry: PayloadEntry) -> None:
        """Remove an entry whose payload was deleted."""
        self.execute("ZREM", keys.PAYLOADS, entry.text)

    def max_bytes(self) -> int:
        """How many bytes of payloads may lie in Redis."""
        if self._max_bytes is not None:
            return self._max_bytes
        if time.monotonic() >= self._found_at + MAXMEMORY_S:
            maxmemory = self._maxmemory()
            self._found_bytes = maxmemory // 2 or DEFAULT_MAX_BYTES
            self._found_at = time.monotonic()
        return self._found_bytes

    def _maxmemory(self) -> int:
        try:
            return int(self.client.info("memory").get("maxmemory", 0))
        except RedisError as error:
            raise translate(error) from error

    def _looked(self, limit: int, *texts: str) -> tuple[int, list[PayloadEntry]]:
        count, *found = self.call(payload_scripts.sweep(limit, texts))
        return int(count), [read_entry(text.decode()) for text in found]


def _put(entry: PayloadEntry, limit: str, size: int, body: bytes | None = None) -> Command:
    """Return the call of payloads/put.lua; without `body` the caller writes the payload."""
    return payload_scripts.put(
        entry.text, entry.ref, grace_us=GRACE_S * US_PER_S, limit=limit, size=size, body=body
    )


def _taken(answer: Any) -> bool:
    return isinstance(answer, list) and answer[0] == 1
