"""What a file is, as its record in Redis tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.jobs.job import new_id
from headrace.redis.keys import FileField

#: How a client's own file is used, and what a batch has written.
BATCH: Final = "batch"
BATCH_OUTPUT: Final = "batch_output"
PURPOSES: Final = (BATCH, BATCH_OUTPUT)
#: A file lives no longer, in seconds.
KEEP_MAX_S: Final = 30 * 86_400
NAME_MAX_CHARS: Final = 255

_ID: Final = re.compile(r"file-[0-9a-f]{32}")


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is whole.

    Attributes:
        id: its name here; sorts by when it was made.
        bytes: its length.
        created_at: seconds since 1970.
        expires_at: when it will be gone, in seconds since 1970.
        filename: as the client called it.
        purpose: one of PURPOSES.
        owner: the id of the API key whose it is; "" for nobody's.
    """

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    owner: str = ""


def new_file_id() -> str:
    """An id that sorts behind those made before."""
    return "file-" + new_id().replace("-", "")


def is_file_id(text: str) -> bool:
    """Whether a file can have this id."""
    return _ID.fullmatch(text) is not None


def read_file(file_id: str, record: Mapping[bytes, bytes]) -> StoredFile | None:
    """Read a record (HGETALL's fields); None where there is no file, or none that is whole."""
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
