"""The interface of payload stores, and references to payloads.

A reference is `<store>:<128 random bits in hex>` and is made only here. So a forged reference can
name no more than another payload.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from headrace.errors import HeadraceError, InputUnavailable
from headrace.jobs.ids import PAYLOAD_REFERENCE

#: Bytes of one read of a payload that is streamed.
CHUNK_BYTES: Final = 256 * 1024


class PayloadMissing(HeadraceError):
    """The store has no payload with this name: it was deleted or has expired."""


class PayloadEntry(NamedTuple):
    """One payload in the index.

    Attributes:
        job_id: the job whose input or result it is, or the file whose part it is.
        model: that job's model; `-` for a file.
        kind: `i` for an input, `r` for a result, `f` for a part of a file.
        owner: the API key for which a new payload counts; "" for none. The record of a job names
            that of a result.
    """

    ref: str
    job_id: str
    model: str
    kind: str
    owner: str = ""

    @property
    def text(self) -> str:
        """Return the member of the index's zset. None of the fields contains a space."""
        return " ".join(self[:4])

    @property
    def store(self) -> str:
        """Return the name of its store."""
        return self.ref.partition(":")[0]


def read_entry(text: str) -> PayloadEntry:
    """Parse a member of the index's zset; raise ValueError if it is malformed."""
    ref, job_id, model, kind = text.split(" ")
    return PayloadEntry(ref, job_id, model, kind)


def new_entry(store: str, job_id: str, model: str, kind: str, owner: str = "") -> PayloadEntry:
    """Return an entry with a new reference."""
    return PayloadEntry(f"{store}:{secrets.token_hex(16)}", job_id, model, kind, owner)


def name_in(ref: str, store: str) -> str:
    """Return the name of a payload in its store; raise InputUnavailable for other references."""
    found = PAYLOAD_REFERENCE.fullmatch(ref)
    if found is None or found[1] != store:
        raise InputUnavailable(f"{ref[:64]!r} is not a reference into the payload store {store}")
    return found[2]


class Note(Protocol):
    """Adds the entry of a payload: `PayloadIndex.note`."""

    def __call__(self, entry: PayloadEntry, *, size: int, bounded: bool) -> None:
        """Add the entry of a payload of `size` bytes that the store writes."""


class PayloadStore(ABC):
    """A place for payloads. Its methods block, and any thread may call them.

    All of them raise a StoreUnavailable or a BrokerError if the store does not answer.
    """

    name: ClassVar[str]
    #: Bytes of one read: fewer cost round trips, more cost memory.
    chunk_bytes: int = CHUNK_BYTES
    #: Whether `put_all` is one round trip. If not, callers should use threads.
    together: ClassVar[bool] = False

    def __init__(self, note: Note) -> None:
        self._note = note

    def put(
        self, entry: PayloadEntry, body: bytes, *, bounded: bool = True, spare: bool = False
    ) -> None:
        """Add the entry of a payload, then write the payload.

        Args:
            entry: made by `new_entry` for this store.
            bounded: whether max_payload_memory_bytes and payload_bytes_per_key apply. They do not
                apply to results.
            spare: whether half of that limit stays free for other payloads.

        Raises:
            PayloadTooLarge, StoreFull: a part may be written, as after other errors; the sweep
                deletes it.
        """
        self._note(entry, size=len(body), bounded=bounded)
        self._write(name_in(entry.ref, self.name), body)

    def put_all(self, payloads: Sequence[tuple[PayloadEntry, bytes]]) -> list[HeadraceError | None]:
        """Write several payloads as `put` does; return None or the error of each."""
        return [self._error_of(*one) for one in payloads]

    def _error_of(self, entry: PayloadEntry, body: bytes) -> HeadraceError | None:
        try:
            self.put(entry, body)
        except HeadraceError as error:
            return error
        return None

    def get(self, ref: str) -> bytes:
        """Return a whole payload; raise PayloadMissing if it does not exist."""
        return self.read(ref, 0, None)

    @abstractmethod
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        """Return `length` bytes (None: all) from `start`, or fewer; or raise PayloadMissing."""

    @abstractmethod
    def size(self, ref: str) -> int:
        """Return the length of a payload in bytes; errors as for `read`."""

    @abstractmethod
    def delete(self, ref: str) -> None:
        """Delete a payload, and the rest of an interrupted write, if they exist."""

    def check(self) -> None:  # noqa: B027 - Redis is checked before all else
        """Check at the start whether the store can be used; raise ConfigError if not."""

    def _write(self, name: str, body: bytes) -> None:
        raise NotImplementedError  # a store without it has its own `put`


def missing(ref: str) -> PayloadMissing:
    """Return the error for a reference without a payload."""
    return PayloadMissing(f"the payload {ref} is no longer in its store")
