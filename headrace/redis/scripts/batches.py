"""The scripts in batches/ and files/: what each call is sent, and what it replies."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.redis import keys
from headrace.redis.scripts import Arg, Command, script


def create(batch_id: str, spec_json: bytes, *, window_s: int, keep_s: int) -> Command:
    """Create a batch; the reply is its record.

    Args:
        batch_id: the new id.
        spec_json: what was requested.
        window_s: how long it may take.
        keep_s: for how long its record is kept after that.
    """
    times = (window_s, keep_s, keys.FILES_TTL_S)
    return script("batches/create").call([], batch_id, spec_json, *times)


def cancel(batch_id: str) -> Command:
    """Request a batch's cancellation; the reply is [1 or 0 (it has ended), its record...]."""
    return script("batches/cancel").call([], batch_id)


def claim(lease_us: int, runner: str) -> Command:
    """Lease the oldest open batch; the reply is [id, token, now in s, its record...], or empty."""
    return script("batches/claim").call([], lease_us, runner)


def release(runner: str) -> Command:
    """Release the batches of a dead runner; the reply is [how many]."""
    return script("batches/release").call([], runner)


def save(
    batch_id: str,
    token: int,
    *,
    lease_us: int,
    status: str,
    keep_s: int,
    fields: Sequence[Arg],
    files: Sequence[Arg],
) -> Command:
    """Save a batch's progress; the reply is [1, now in s, its status], or [0] if it is lost.

    Args:
        batch_id: the batch.
        token: the fencing token of its lease.
        lease_us: how long the lease lasts from now; 0 or less releases the batch.
        status: its new status; "" for the same.
        keep_s: for how long its record is kept once it has ended.
        fields: names and values of the record.
        files: for each file its `SavedProgress.arguments`.
    """
    head = (batch_id, token, lease_us, status, keep_s, len(fields))
    return script("batches/save").call([], *head, *fields, *files)


def begin_file(file_id: str, abandoned_ms: int, fields: Sequence[Arg]) -> Command:
    """Begin a file, which expires if no part comes for `abandoned_ms`."""
    return script("files/begin").call([], file_id, abandoned_ms, *fields)


def add_part(
    file_id: str, ref: str, *, offset: int, size: int, abandoned_ms: int, part_ttl_ms: int
) -> Command:
    """Add a stored part to a file; the reply is [1], or [0] if the file is not being written.

    Args:
        file_id: the file.
        ref: the part's reference.
        offset: of its first byte.
        size: of the file with this part.
        abandoned_ms: as for `begin_file`.
        part_ttl_ms: for how long a part in Redis is kept at most.
    """
    times = (abandoned_ms, part_ttl_ms)
    return script("files/part").call([], file_id, ref, offset, size, *times)


def finish_file(file_id: str, purpose: str, keep_s: int) -> Command:
    """Finish a file; the reply is its record, or empty if it is unknown."""
    return script("files/finish").call([], file_id, purpose, keep_s, keys.FILES_TTL_S)
