"""Job ids: new ones, and those from clients, given as such or by an idempotency key."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from headrace.errors import InvalidId

ID: Final = r"^[A-Za-z0-9_.:@-]{1,128}$"
KEY: Final = r"^[!-~]{1,255}$"
ID_GRAMMAR: Final = "1 to 128 of A-Z a-z 0-9 - _ . : @"
KEY_GRAMMAR: Final = "1 to 255 visible ASCII characters, without spaces"

MODEL_NAME: Final = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
#: The name of a model in the API; an unknown one is refused as such.
ModelName = Annotated[str, Meta(extra_json_schema={"pattern": MODEL_NAME}, examples=["echo"])]
#: The version of a model, which is part of the name of a queue and of a path.
VERSION: Final = "^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}$"
VERSION_GRAMMAR: Final = "1 to 64 of A-Z a-z 0-9 _ . + - and does not begin with . + or -"

#: A reference of a payload: the store and a random id.
PAYLOAD_REFERENCE: Final = re.compile(r"(redis|file|s3):([0-9a-f]{32})")

_ID = re.compile(ID)
_KEY = re.compile(KEY)
_DERIVED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
#: HTTP clients remove these from a path.
_NO_PATH: Final = frozenset({".", ".."})
_SHOWN_MAX_CHARS: Final = 128
#: The variant of RFC 9562 and two random bits, by a random hexadecimal digit.
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
#: Random parts of ids to come. Each draw is a system call, so many are drawn at once.
_drawn: Final[list[str]] = []
_DRAWN_MAX: Final = 64
# Without this, parent and child would make the same ids.
os.register_at_fork(after_in_child=_drawn.clear)


def new_id() -> str:
    """Return a new job id: a uuid7 (RFC 9562, 5.7), sorted by its millisecond."""
    if not _drawn:
        _drawn.extend(_random_parts(_DRAWN_MAX))
    return _begin() + _drawn.pop()


def new_ids(count: int) -> list[str]:
    """Return `count` new ids, which is cheaper than one by one."""
    begin = _begin()
    return [begin + random for random in _random_parts(count)]


def ids_on_demand() -> Iterator[str]:
    """Yield new ids with the time of the first one."""
    begin = _begin()
    while True:
        for random in _random_parts(_DRAWN_MAX):
            yield begin + random


def _begin() -> str:
    """Return the part of an id that holds the time."""
    time_ms = f"{time.time_ns() // 1_000_000:012x}"
    return f"{time_ms[:8]}-{time_ms[8:]}-7"


def _random_parts(count: int) -> list[str]:
    # An id uses 19 of 20 digits: two bits of the fourth are the variant, and one digit is left.
    digits = os.urandom(10 * count).hex()
    return [
        f"{digits[at : at + 3]}-{_VARIANT[digits[at + 3]]}{digits[at + 4 : at + 7]}"
        f"-{digits[at + 7 : at + 19]}"
        for at in range(0, 20 * count, 20)
    ]


def is_id(text: str) -> bool:
    """Return whether a client may choose this id."""
    return _ID.fullmatch(text) is not None and text not in _NO_PATH


def check_id(text: str) -> str:
    """Return the id; raise InvalidId if a client may not choose it."""
    if not is_id(text):
        raise InvalidId(
            f"invalid job id {text[:_SHOWN_MAX_CHARS]!r}",
            hint=f"An id has {ID_GRAMMAR}, and is not . or .. alone.",
        )
    return text


def check_free_id(text: str) -> str:
    """Return an id that an API key chooses.

    Raises:
        InvalidId: a client may not choose it. Ids that are derived, such as from another key's
            idempotency key, are UUIDs of version 8. A client that takes one first would keep its
            owner out.
    """
    if _DERIVED.fullmatch(text):
        raise InvalidId(
            f"the job id {text} is a UUID of version 8, the form of ids of idempotency keys",
            hint="Send the Idempotency-Key instead, or choose another id, such as a random UUID.",
        )
    return check_id(text)


def check_key(text: str) -> str:
    """Return the idempotency key; raise InvalidId if it cannot be used."""
    if not _KEY.fullmatch(text):
        raise InvalidId(
            f"invalid Idempotency-Key {text[:_SHOWN_MAX_CHARS]!r}",
            hint=f"A key has {KEY_GRAMMAR}; a random UUID is a good key.",
        )
    return text


def id_of_key(key: str, owner: str = "") -> str:
    """Return the id of the job of an idempotency key: a UUID of version 8 (RFC 9562, 5.8).

    Args:
        owner: the API key of the client, whose idempotency keys are its own; "" for none.
    """
    # No key has a NUL, so that two different pairs never give the same text.
    return _uuid8(f"{key}\0{owner}" if owner else key, b"headrace-key")


def callback_id(job_id: str, place: str) -> str:
    """Return the id of a callback without one: always the same for its place after a job."""
    return _uuid8(f"{job_id}/{place}", b"headrace-sequel")


def _uuid8(text: str, purpose: bytes) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16, person=purpose).digest()
    value = int.from_bytes(digest, "big")
    value = value & ~(0xF << 76) | 0x8 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
