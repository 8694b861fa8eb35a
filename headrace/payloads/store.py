"""What a payload store does, and the names of what lies in it. Knows no Redis, files or buckets.

A reference is `<store>:<128 random bits in hex>`. It is made here and nowhere else, so that whoever
writes one into a message can at most name another payload of ours.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from headrace.errors import HeadraceError, InputUnavailable
from headrace.jobs.ids import PAYLOAD_REFERENCE

#: How much is read at a time of what is passed on.
CHUNK_BYTES: Final = 256 * 1024


class PayloadMissing(HeadraceError):
    """The store has no payload of that name; it was deleted, or its time is over."""


class PayloadEntry(NamedTuple):
    """One payload in the account: what it is, and whose.

    Attributes:
        ref: its reference.
        job_id: the job whose input or result it is, or the file that it is a part of.
        model: that job's model; `-` for a file.
        kind: `i` for an input, `r` for a result, `f` for a part of a file.
    """

    ref: str
    job_id: str
    model: str
    kind: str

    @property
    def text(self) -> str:
        """The member of the account's zset; none of its parts holds a space."""
        return " ".join(self)

    @property
    def store(self) -> str:
        """The name of the store that it lies in."""
        return self.ref.partition(":")[0]


def read_entry(text: str) -> PayloadEntry:
    """Read a member of the account's zset.

    Raises:
        ValueError: it is none of ours.
    """
    ref, job_id, model, kind = text.split(" ")
    return PayloadEntry(ref, job_id, model, kind)


def new_entry(store: str, job_id: str, model: str, kind: str) -> PayloadEntry:
    """An entry under a fresh reference."""
    return PayloadEntry(f"{store}:{secrets.token_hex(16)}", job_id, model, kind)


def name_in(ref: str, store: str) -> str:
    """The name of a payload inside its store.

    Raises:
        InputUnavailable: it is no reference, or that of another store.
    """
    found = PAYLOAD_REFERENCE.fullmatch(ref)
    if found is None or found[1] != store:
        raise InputUnavailable(f"{ref[:64]!r} is no reference into the payload store {store}")
    return found[2]


class PayloadAccount(Protocol):
    """Where a store says what it is about to write."""

    def note(self, entry: PayloadEntry, body: bytes | None = None, *, bounded: bool = True) -> None:
        """Enter a payload; see `headrace.payloads.index.PayloadIndex`."""

    def note_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[bool]:
        """Enter and write several payloads that lie in Redis; see there."""


class PayloadStore(ABC):
    """One place for payloads. Its methods block and may be called from any thread.

    Args:
        account: told of each payload before it is written.
    """

    name: ClassVar[str]
    #: How much one read should ask for: less costs round trips, more costs memory.
    chunk_bytes: int = CHUNK_BYTES
    #: Whether several payloads are written in one call. Else the caller does well to use threads.
    together: ClassVar[bool] = False

    def __init__(self, account: PayloadAccount) -> None:
        self.account = account

    def put(self, entry: PayloadEntry, body: bytes, *, bounded: bool = True) -> None:
        """Write a payload, after it was entered in the account.

        Args:
            entry: made by `new_entry` for this store.
            body: the bytes.
            bounded: whether max_payload_memory_bytes counts; a result ends a job and is not held
                to it.

        Raises:
            StoreFull, StoreUnavailable, BrokerError: it may be there in part; the sweep removes it.
        """
        self.account.note(entry, bounded=bounded)
        self._write(name_in(entry.ref, self.name), body)

    def put_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[HeadraceError | None]:
        """Write several payloads, each as `put` does; for each None, or why it is not there."""
        return [self._error_of(*one) for one in payloads]

    def _error_of(self, entry: PayloadEntry, body: bytes) -> HeadraceError | None:
        try:
            self.put(entry, body)
        except HeadraceError as error:
            return error
        return None

    def get(self, ref: str) -> bytes:
        """A whole payload.

        Raises:
            PayloadMissing: there is none.
            StoreUnavailable, BrokerError: no answer.
        """
        return self.read(ref, 0, None)

    @abstractmethod
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        """`length` bytes (None: all) from `start`; fewer where the payload ends before.

        Raises:
            PayloadMissing: there is no such payload.
            StoreUnavailable, BrokerError: no answer.
        """

    @abstractmethod
    def size(self, ref: str) -> int:
        """The length of a payload in bytes; errors as for `read`."""

    @abstractmethod
    def delete(self, ref: str) -> None:
        """Delete a payload, and what a broken-off write of it left; none is no error.

        Raises:
            StoreUnavailable, BrokerError: no answer.
        """

    @abstractmethod
    def check(self) -> None:
        """Look at the start whether the store can be used.

        Raises:
            ConfigError: it is not there, or may not be used.
            StoreUnavailable, BrokerError: no answer; it may come later.
        """

    @abstractmethod
    def _write(self, name: str, body: bytes) -> None: ...


def missing(ref: str) -> PayloadMissing:
    """The error for a reference under which nothing lies."""
    return PayloadMissing(f"the payload {ref} is not in its store any more")
