"""The index of payloads in Redis: which payload belongs to which job, and when to check it.

An entry is written before its payload and removed after it. A process that dies in between leaves
an entry, which the sweep finds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import redis

from headrace.errors import BrokerFull, PayloadTooLarge, StoreFull
from headrace.payloads.store import PayloadEntry, read_entry
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Command, script

#: Seconds after which a payload without a job was abandoned by its sender.
GRACE_S: Final = 900
#: The most entries of one sweep call, which blocks Redis meanwhile.
SWEEP_MAX_ENTRIES: Final = 100
#: max_payload_memory_bytes if neither the setting nor Redis' maxmemory is set.
DEFAULT_MAX_BYTES: Final = 1024 * 1024 * 1024
#: Longer payloads are not passed through Lua, which copies them and blocks Redis.
SCRIPT_MAX_BYTES: Final = 1024 * 1024
#: How long Redis' maxmemory is cached.
MAXMEMORY_S: Final = 60.0


class PayloadIndex(ScriptClient):
    """The index. Its methods block, and any thread may call them.

    Args:
        client: Redis, with its own pool of connections.
        max_bytes: the limit of payloads in Redis; None takes half of its maxmemory, or 1 GiB.
        share_bytes: the limit of the payloads of one API key; None takes half of `max_bytes` for
            payloads in Redis, and none elsewhere.
    """

    def __init__(
        self, client: redis.Redis, max_bytes: int | None = None, share_bytes: int | None = None
    ) -> None:
        super().__init__(client)
        self._max_bytes = max_bytes
        self._share_bytes = share_bytes
        self._found_bytes = DEFAULT_MAX_BYTES
        self._found_at = float("-inf")

    def note(
        self, entry: PayloadEntry, body: bytes | None = None,
        *, size: int = 0, bounded: bool = True, spare: bool = False,
    ) -> None:  # fmt: skip
        """Add the entry of a payload; with a body, also write the payload to Redis.

        Args:
            size: its bytes, if it goes elsewhere.
            bounded: whether the limits apply.
            spare: whether half of max_payload_memory_bytes stays free for other payloads.

        Raises:
            StoreFull: payloads in Redis would exceed max_payload_memory_bytes, or those of the API
                key its share; nothing was written.
            PayloadTooLarge: this payload alone exceeds it.
            BrokerError: Redis does not answer, or is full.
        """
        size = size if body is None else len(body)
        limit = share = ""
        if bounded:
            share = self._share(entry)
            if body is not None:
                most = self._fitting(size)
                limit = str(most // 2 if spare else most)
        in_script = body is not None and size <= SCRIPT_MAX_BYTES
        put = _put(entry, limit, share, size, body if in_script else None)
        reply = self.call(put)
        # Expired results are gone from Redis, but stay in the index until a sweep.
        if reply[0] != 1 and self.due()[0]:
            reply = self.call(put)
        if reply[0] == 0:
            raise StoreFull(
                f"payloads take {int(reply[1])} bytes of Redis; with {size} more they would "
                f"exceed {limit}",
                hint="Try again later, raise max_payload_memory_bytes, or set payload_store to "
                "file or s3. Inputs count until their jobs end, results until their result_ttl.",
            )
        if reply[0] == 2:
            raise _over_share(reply[2].decode(), int(reply[1]), size, int(share))
        if body is not None and not in_script:
            self._write(entry, body, limit, bounded=bounded)

    def note_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[bool]:
        """Add and write several payloads in one round trip; return whether each was written.

        For one that was not, `note` raises the reason.

        Raises:
            BrokerError: Redis does not answer; some may have been written.
        """
        limit = str(self.max_bytes())
        small = [one for one in payloads if len(one[1]) <= SCRIPT_MAX_BYTES]
        commands = [
            _put(entry, limit, self._share(entry), len(body), body) for entry, body in small
        ]
        answers = iter(self.replies(commands) if commands else ())
        found = [len(body) <= SCRIPT_MAX_BYTES and next(answers) for _, body in payloads]
        return [isinstance(answer, list) and answer[0] == 1 for answer in found]

    def _share(self, entry: PayloadEntry) -> str:
        """Return the most bytes of payloads of one API key, for payloads/put.lua."""
        if self._share_bytes is not None:
            return str(self._share_bytes)
        return str(self.max_bytes() // 2) if entry.store == "redis" else ""

    def _fitting(self, size: int) -> int:
        """Return the limit of payloads in Redis. A larger payload never fits."""
        limit = self.max_bytes()
        if size > limit:
            raise PayloadTooLarge(
                f"the input has {size} bytes, more than the {limit} bytes of all payloads in Redis "
                "(max_payload_memory_bytes)",
                hint="Send a smaller input, raise max_payload_memory_bytes "
                "(HEADRACE_MAX_PAYLOAD_MEMORY_BYTES), or set payload_store to file or s3.",
            )
        return limit

    def _write(self, entry: PayloadEntry, body: bytes, limit: str, *, bounded: bool) -> None:
        """Write a payload that has its entry."""
        try:
            self.execute("SET", keys.payload(entry.ref.partition(":")[2]), body)
        except BrokerFull:
            if bounded:
                self.look(entry)
                raise
            # At maxmemory only scripts that begin with a removal run.
            self.call(_put(entry, limit, "", len(body), body))

    def look(self, *entries: PayloadEntry) -> list[PayloadEntry]:
        """Delete those of these payloads that are not needed.

        Payloads in Redis are deleted. The others are returned; the caller deletes them and calls
        `forget`.
        """
        return self._looked(0, *(entry.text for entry in entries))[1]

    def due(self) -> tuple[int, list[PayloadEntry]]:
        """Do the same as `look` for payloads that are due; return how many were checked, too.

        At most SWEEP_MAX_ENTRIES are checked.
        """
        return self._looked(SWEEP_MAX_ENTRIES)

    def hand_over(self, old: PayloadEntry, new: PayloadEntry) -> None:
        """Make a job's result that of another job, whose record will name it."""
        self.call(script("pipelines/hand_over").call([], old.text, new.text, new.job_id))

    def forget(self, entry: PayloadEntry) -> None:
        """Remove an entry whose payload was deleted."""
        self.execute("ZREM", keys.PAYLOADS, entry.text)

    def max_bytes(self) -> int:
        """Return the limit of payloads in Redis, in bytes."""
        if self._max_bytes is not None:
            return self._max_bytes
        if time.monotonic() >= self._found_at + MAXMEMORY_S:
            maxmemory = int(self.execute("INFO", "memory").get("maxmemory", 0))
            self._found_bytes = maxmemory // 2 or DEFAULT_MAX_BYTES
            self._found_at = time.monotonic()
        return self._found_bytes

    def _looked(self, limit: int, *texts: str) -> tuple[int, list[PayloadEntry]]:
        # What failed jobs keep for a retry must not refuse new jobs.
        share = "" if self._share_bytes is None else self._share_bytes // 2
        sweep = script("payloads/sweep").call([], limit, self.max_bytes() // 2, share, *texts)
        count, *found = self.call(sweep)
        return int(count), [read_entry(text.decode()) for text in found]


def _put(
    entry: PayloadEntry, limit: str, share: str, size: int, body: bytes | None = None
) -> Command:
    """Return the call of payloads/put.lua; without `body` the caller writes the payload."""
    written = () if body is None else (body,)
    return script("payloads/put").call(
        [], entry.text, entry.ref, GRACE_S * US_PER_S, limit, size, share, entry.owner, *written
    )


def _over_share(key_id: str, used: int, size: int, share: int) -> StoreFull | PayloadTooLarge:
    if size > share:
        return PayloadTooLarge(
            f"the payload has {size} bytes, more than the {share} bytes that API key {key_id} may "
            "store (payload_bytes_per_key)",
            hint="Send a smaller one, or ask an operator to raise payload_bytes_per_key.",
        )
    return StoreFull(
        f"inputs, results and files of API key {key_id} take {used} bytes; with {size} more they "
        f"would exceed its share of the payload store, {share} (payload_bytes_per_key)",
        hint="Wait until jobs of the key have ended, delete results or files that it does not "
        "need, or ask an operator to raise payload_bytes_per_key.",
    )
