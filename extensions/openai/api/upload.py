"""Reads an upload as it arrives, so that memory does not grow with its file."""

from __future__ import annotations

from typing import Final

from api.http.forms import MultipartReader, PartHead
from headrace.errors import InvalidRequest, PayloadTooLarge

#: The part of an upload that is the file.
FILE_FIELD: Final = "file"
FIELDS_MAX: Final = 20
FIELD_MAX_BYTES: Final = 4096


class Upload:
    """One file and the small fields of its form, as they arrive; `close` it at the end.

    Attributes:
        filename: the name of the file; None until it begins.

    Raises:
        InvalidRequest: the content type has no boundary.
    """

    def __init__(self, content_type: str, limit_bytes: int) -> None:
        self.filename: str | None = None
        self.fields: dict[str, str] = {}
        self._limit_bytes = limit_bytes
        self._file_bytes = 0
        self._file_ended = False
        self._waiting = bytearray()
        self._field = ""
        self._value = bytearray()
        self._reader = MultipartReader(content_type, self._begin, self._data, self._end)

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body.

        Raises:
            InvalidRequest: the body is not a form, or not one of an upload.
            PayloadTooLarge: the file is larger than the limit.
        """
        self._reader.feed(piece)

    def close(self) -> None:
        """Let go of the reader."""
        self._reader.close()

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the file that were received and not taken."""
        return len(self._waiting)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes of the file, or as many as were received."""
        taken = bytes(self._waiting[:count])
        del self._waiting[:count]
        return taken

    def check_complete(self) -> None:
        """Raise InvalidRequest if the form is incomplete or has no file."""
        self._reader.check_complete()
        if not self._file_ended:
            raise InvalidRequest(
                f"the form has no part {FILE_FIELD!r} with a file in it",
                hint="As with curl -F purpose=batch -F file=@requests.jsonl.",
            )

    @property
    def _in_file(self) -> bool:
        return self._field == FILE_FIELD

    def _begin(self, head: PartHead) -> None:
        if len(self.fields) >= FIELDS_MAX:
            raise InvalidRequest(f"the form has more than {FIELDS_MAX} fields")
        self._value = bytearray()
        self._field = head.name
        if not self._in_file:
            return
        if self.filename is not None:
            raise InvalidRequest("the form has more than one file", hint="Upload one at a time.")
        self.filename = head.filename

    def _data(self, data: bytes) -> None:
        if self._in_file:
            self._file_bytes += len(data)
            if self._file_bytes > self._limit_bytes:
                raise file_too_large(self._limit_bytes)
            self._waiting += data
            return
        self._value += data
        if len(self._value) > FIELD_MAX_BYTES:
            raise InvalidRequest(
                f"the form's field {self._field[:64]!r} is longer than {FIELD_MAX_BYTES} bytes"
            )

    def _end(self) -> None:
        if self._in_file:
            self._file_ended = True
            return
        if self._field in self.fields:
            raise InvalidRequest(f"the form has the field {self._field[:64]!r} twice")
        self.fields[self._field] = self._value.decode("utf-8", "replace")


def file_too_large(limit_bytes: int) -> PayloadTooLarge:
    """Return the error for a file above the limit."""
    return PayloadTooLarge(
        f"the file has more than {limit_bytes} bytes",
        hint="Split it, or raise file_limit_bytes (HEADRACE_FILE_LIMIT_BYTES).",
    )
