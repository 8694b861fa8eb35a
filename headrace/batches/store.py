"""Batches in Redis: the API creates, lists and cancels them; runners lease and execute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.access.api_key import EVERYBODY, NO_OWNER, Caller
from headrace.batches.files.pages import FilePage, page_of
from headrace.batches.record import BatchRecord, BatchSpec, is_batch_id, new_batch_id, read_batch
from headrace.errors import BatchNotFound
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import Arg
from headrace.redis.scripts import batches as batch_scripts
from headrace.redis.scripts import jobs as job_scripts


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that is leased to one runner.

    Attributes:
        batch: as it was when it was leased.
        token: the fencing token.
        now_s: when that was, by the clock of Redis, in seconds since 1970.
    """

    batch: BatchRecord
    token: int
    now_s: int


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """What was written to a file since it was last saved.

    Attributes:
        id: the file.
        name: its name for clients.
        owner: the id of the API key that owns it; "" without keys.
        bytes: its current size.
        keep_s: how long it is kept once the batch has ended.
        replaced: the part that the first new part replaces; "" for none.
        parts: reference and offset of each new part.
    """

    id: str
    name: str
    owner: str
    bytes: int
    keep_s: int
    replaced: str
    parts: Sequence[tuple[str, int]]

    @property
    def arguments(self) -> list[Arg]:
        """The arguments of batches/save.lua."""
        parts = [value for part in self.parts for value in part]
        return [
            self.id, self.name, self.owner, self.bytes, self.keep_s, self.replaced,
            len(self.parts), *parts,
        ]  # fmt: skip


class BatchStore:
    """Batches. Its methods block and may be called from any thread.

    Args:
        client: Redis.
        keep_s: how long a batch is kept after its end.
        lease_s: how long a lease lasts without renewal.
    """

    def __init__(self, client: ScriptClient, keep_s: int, lease_s: float) -> None:
        self._client = client
        self._keep_s = keep_s
        self._lease_s = lease_s

    def create(self, spec: BatchSpec) -> BatchRecord:
        """Create a batch, which waits for a runner.

        Raises:
            BrokerError: Redis is unavailable or full.
        """
        batch_id = new_batch_id()
        text = msgspec.json.encode(spec)
        create = batch_scripts.create(batch_id, text, window_s=spec.window_s, keep_s=self._keep_s)
        return _batch(batch_id, self._client.call(create))

    def get(self, batch_id: str, caller: Caller = EVERYBODY) -> BatchRecord:
        """Return a batch.

        Args:
            batch_id: its id.
            caller: the API key of the request; it sees only its own batches.

        Raises:
            BatchNotFound: no such batch.
            BrokerError: Redis is unavailable.
        """
        found = self._read([batch_id])[0] if is_batch_id(batch_id) else None
        if found is None or not caller.may_see(found.spec.owner):
            raise missing_batch(batch_id)
        return found

    def page(self, caller: Caller, *, after: str, limit: int) -> FilePage[BatchRecord]:
        """Return a page of batches, the newest first; `after` is the id of the last one before it.

        Raises:
            BrokerError: Redis is unavailable.
        """
        return page_of(self._client, keys.BATCHES, self._read, after=after, limit=limit,
            keep=lambda batch: caller.may_see(batch.spec.owner),
        )  # fmt: skip

    def cancel(self, batch_id: str, caller: Caller = EVERYBODY) -> tuple[BatchRecord, bool]:
        """Request the cancellation of a batch; return it, and whether it will be cancelled.

        Raises:
            BatchNotFound: no such batch.
            BrokerError: Redis is unavailable.
        """
        self.get(batch_id, caller)
        cancelling, *record = self._client.call(batch_scripts.cancel(batch_id))
        return _batch(batch_id, record), bool(cancelling)

    def claim(self, runner: str = "") -> Lease | None:
        """Lease the batch that has waited longest; return None if no batch waits.

        Args:
            runner: the runner's name, for `release`.

        Raises:
            BrokerError: Redis is unavailable.
        """
        reply = self._client.call(batch_scripts.claim(round(self._lease_s * US_PER_S), runner))
        if not reply:
            return None
        raw_id, token, now_s, *record = reply
        return Lease(_batch(raw_id.decode(), record), int(token), int(now_s))

    def release(self, runner: str) -> int:
        """Release the batches of a runner that is gone; return how many these were.

        Raises:
            BrokerError: Redis is unavailable; the leases expire by themselves.
        """
        return int(self._client.call(batch_scripts.release(runner))[0])

    def save(
        self,
        lease: Lease,
        status: str = "",
        fields: Mapping[str, str | bytes | int] | None = None,
        written: Sequence[SavedProgress] = (),
        lease_s: float | None = None,
    ) -> tuple[int, str] | None:
        """Save the progress of a batch in one step, and renew the lease.

        Args:
            lease: the runner's.
            status: the new status; "" for no change.
            fields: the fields of the record that change.
            written: what was written to its files.
            lease_s: how long the lease lasts from now; None for the default.

        Returns:
            The time by the clock of Redis in seconds since 1970, and the current status; None if
            another runner has the batch, and nothing was changed.

        Raises:
            BrokerError: Redis is unavailable; whether it was saved is unknown, and it can be saved
                again.
        """
        changes: list[Arg] = [value for pair in (fields or {}).items() for value in pair]
        lease_us = round((self._lease_s if lease_s is None else lease_s) * US_PER_S)
        save = batch_scripts.save(
            lease.batch.id, lease.token, lease_us=lease_us, status=status, keep_s=self._keep_s,
            fields=changes, files=[value for file in written for value in file.arguments],
        )  # fmt: skip
        saved, *rest = self._client.call(save)
        return (int(rest[0]), rest[1].decode()) if saved else None

    def cancel_jobs(self, batch: BatchRecord, ids: Sequence[str]) -> None:
        """Cancel jobs that belong to the owner of a batch whose API key is no longer valid.

        Raises:
            BrokerError: Redis is unavailable.
        """
        owner = batch.spec.owner or NO_OWNER
        self._client.call(job_scripts.cancel([f"{one} {owner}" for one in ids]))

    def _read(self, ids: list[str]) -> list[BatchRecord | None]:
        found = self._client.read_all([("HGETALL", keys.batch(one)) for one in ids])
        return [read_batch(one, record) for one, record in zip(ids, found, strict=True)]


def missing_batch(batch_id: str) -> BatchNotFound:
    """Return the error for an unknown batch id."""
    return BatchNotFound(
        f"there is no batch {batch_id[:64]!r}", hint="GET /v1/batches lists the batches."
    )


def _batch(batch_id: str, flat: Sequence[Any]) -> BatchRecord:
    found = read_batch(batch_id, dict(zip(flat[::2], flat[1::2], strict=True)))
    if found is None:
        raise missing_batch(batch_id)
    return found
