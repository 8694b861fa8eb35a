"""An upload as multipart/form-data, taken in as it comes: one file, and small fields beside it.

What of the file has come is handed over a part at a time, so that memory does not grow with it.
Knows no store and no HTTP.
"""

from __future__ import annotations

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.errors import InvalidRequest, PayloadTooLarge

#: The part of the form that is the file.
FILE_FIELD: Final = "file"
FIELDS_MAX: Final = 20
FIELD_MAX_BYTES: Final = 4096


class Upload:
    """The state of one form.

    Args:
        content_type: the request's, with the boundary.
        limit_bytes: the largest file.

    Attributes:
        filename: of the file; None until it begins.
        fields: the others.
        complete: the last boundary has come.
        file_ended: the file is whole.

    Raises:
        InvalidRequest: there is no boundary.
    """

    def __init__(self, content_type: str, limit_bytes: int) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise InvalidRequest(
                "Content-Type multipart/form-data names no boundary",
                hint="Let your HTTP client write this header, as curl -F does.",
            )
        self.filename: str | None = None
        self.fields: dict[str, str] = {}
        self.complete = False
        self.file_ended = False
        self._limit_bytes = limit_bytes
        self._file_bytes = 0
        self._taken = bytearray()
        self._in_file = False
        self._field = ""
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._header = [b"", b""]
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._head(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._head(1, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": lambda data, start, end: self._data(data[start:end]),
                "on_part_end": self._end,
                "on_end": self._finish,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Take in what has come.

        Raises:
            InvalidRequest: it is no form, or holds what none of ours does.
            PayloadTooLarge: the file is larger than the limit.
        """
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise InvalidRequest(f"the multipart body cannot be read: {error}") from None

    @property
    def waiting_bytes(self) -> int:
        """How much of the file has come and was not taken."""
        return len(self._taken)

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        found = bytes(self._taken[:count])
        del self._taken[:count]
        return found

    def check_whole(self) -> None:
        """Raises InvalidRequest where the body has ended before the form, or holds no file."""
        if not self.complete:
            raise InvalidRequest(
                "the multipart body ends before its last boundary", hint="Send all of it."
            )
        if not self.file_ended:
            raise InvalidRequest(
                f"the form has no part {FILE_FIELD!r} with a file in it",
                hint="As with curl -F purpose=batch -F file=@requests.jsonl.",
            )

    def _begin(self) -> None:
        if len(self.fields) >= FIELDS_MAX:
            raise InvalidRequest(f"the form has more than {FIELDS_MAX} fields")
        self._headers = {}
        self._header = [b"", b""]
        self._value = bytearray()

    def _head(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _header_end(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = [b"", b""]

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        self._in_file = self._field == FILE_FIELD
        if not self._in_file:
            return
        if self.filename is not None:
            raise InvalidRequest("the form has more than one file", hint="Upload one at a time.")
        self.filename = options.get(b"filename", b"").decode("utf-8", "replace")

    def _data(self, data: bytes) -> None:
        if self._in_file:
            self._file_bytes += len(data)
            if self._file_bytes > self._limit_bytes:
                raise too_large(self._limit_bytes)
            self._taken += data
            return
        self._value += data
        if len(self._value) > FIELD_MAX_BYTES:
            raise InvalidRequest(
                f"the form's field {self._field[:64]!r} is longer than {FIELD_MAX_BYTES} bytes"
            )

    def _end(self) -> None:
        if self._in_file:
            self.file_ended = True
            return
        if self._field in self.fields:
            raise InvalidRequest(f"the form's field {self._field[:64]!r} is there twice")
        self.fields[self._field] = self._value.decode("utf-8", "replace")

    def _finish(self) -> None:
        self.complete = True


def too_large(limit_bytes: int) -> PayloadTooLarge:
    """The error for a file that is larger than one may be."""
    return PayloadTooLarge(
        f"the file has more than {limit_bytes} bytes",
        hint="Split it, or raise file_limit_bytes (HEADRACE_FILE_LIMIT_BYTES).",
    )
