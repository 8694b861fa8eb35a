"""The record of a file in Redis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.jobs.ids import new_id
from headrace.redis.fields import FileField

#: The purpose of a file that a client uploads, and of one that a batch writes.
BATCH: Final = "batch"
BATCH_OUTPUT: Final = "batch_output"
PURPOSES: Final = (BATCH, BATCH_OUTPUT)
#: The longest time that a file is kept, in seconds.
KEEP_MAX_S: Final = 30 * 86_400
NAME_MAX_CHARS: Final = 255

_ID: Final = re.compile(r"file-[0-9a-f]{32}")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A complete file.

    Attributes:
        id: sorts by the time of creation.
        bytes: its size.
        created_at: seconds since 1970.
        expires_at: when it expires, in seconds since 1970.
        filename: the name that the client gave.
        purpose: one of PURPOSES.
        owner: the id of the API key that owns it; "" without keys.
    """

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    owner: str = ""


def new_file_id() -> str:
    """Return an id that sorts behind those created before."""
    return "file-" + new_id().replace("-", "")


def is_file_id(text: str) -> bool:
    """Return whether a file can have this id."""
    return _ID.fullmatch(text) is not None


def read_file(file_id: str, record: Mapping[bytes, bytes]) -> StoredFile | None:
    """Read a record (the fields of HGETALL); None unless it is that of a complete file."""
    text = {name.decode(): value.decode("utf-8", "replace") for name, value in record.items()}
    if text.get(FileField.STATE) != "p":
        return None
    return StoredFile(
        id=file_id,
        bytes=int(text[FileField.BYTES]),
        created_at=int(text[FileField.CREATED]),
        expires_at=int(text[FileField.EXPIRES]),
        filename=text[FileField.NAME],
        purpose=text[FileField.PURPOSE],
        owner=text.get(FileField.OWNER, ""),
    )
