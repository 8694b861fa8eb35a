"""The scripts in payloads/: what each call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.redis.scripts import Command, script


def put(
    entry: str, ref: str, *, grace_us: int, limit: str, size: int, body: bytes | None = None
) -> Command:
    """Enter a payload into the index; the reply is [1 or 0 (no room), bytes of all in Redis].

    Args:
        entry: its entry, as `PayloadEntry.text`.
        ref: its reference.
        grace_us: after how long the sweep first looks at it.
        limit: how many bytes of payloads Redis may hold; "" for a result, which always has room.
        size: its size in Redis; 0 if it is stored elsewhere.
        body: the payload, to be written in the same call; None if the caller writes it.
    """
    written = () if body is None else (body,)
    return script("payloads/put").call([], entry, ref, grace_us, limit, size, *written)


def sweep(limit: int, entries: Iterable[str] = ()) -> Command:
    """Look at up to `limit` entries that are due, and at `entries`.

    The reply is [how many were looked at, the entries that the caller must delete...].
    """
    return script("payloads/sweep").call([], limit, *entries)
