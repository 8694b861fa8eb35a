"""Read multipart/form-data as it arrives. Independent of stores.

`read_parts` returns all parts of a body that is in memory; `Upload` streams one file, so that
memory does not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.errors import InvalidRequest, PayloadTooLarge

MAX_PARTS: Final = 100
#: The most bytes before the first part and after the last one, which are ignored.
OUTSIDE_MAX_BYTES: Final = 64 * 1024
#: The part of an upload that is the file.
FILE_FIELD: Final = "file"
FIELDS_MAX: Final = 20
FIELD_MAX_BYTES: Final = 4096


class PartHead(NamedTuple):
    """The headers of one part.

    Attributes:
        filename: "" for none.
        content_type: as the client sent it; "" for none.
    """

    name: str
    filename: str
    content_type: str


class MultipartReader:
    """Parses a form and passes on its parts; `close` it at the end.

    Raises:
        InvalidRequest: the content type has no boundary.
    """

    def __init__(
        self,
        content_type: str,
        on_head: Callable[[PartHead], None],
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise InvalidRequest(
                "Content-Type multipart/form-data names no boundary",
                hint="Let your HTTP client write this header, as curl -F does.",
            )
        self._begun = self._complete = False
        self._outside_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": lambda: on_head(self._head()),
                "on_part_data": lambda data, start, end: on_data(data[start:end]),
                "on_part_end": on_end,
                "on_end": self._finish,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body.

        Raises:
            InvalidRequest: the body is not a form.
        """
        if not self._complete:
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise InvalidRequest(f"the multipart body cannot be read: {error}") from None
            if self._begun:
                return
        self._outside_bytes += len(piece)
        if self._outside_bytes > OUTSIDE_MAX_BYTES:
            raise InvalidRequest(
                f"the multipart body has more than {OUTSIDE_MAX_BYTES} bytes outside its parts",
                hint="Begin it with the first boundary, and end it with the last one.",
            )

    def check_complete(self) -> None:
        """Raise InvalidRequest if the last boundary is missing."""
        if not self._complete:
            raise InvalidRequest(
                "the multipart body ends before its last boundary", hint="Send all of it."
            )

    def close(self) -> None:
        """Let go of the callbacks, which lead back to the reader and to what they have stored."""
        self._parser.callbacks = {}

    def _begin(self) -> None:
        self._begun = True
        self._headers = {}
        self._name = self._value = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _head(self) -> PartHead:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        return PartHead(
            name=options.get(b"name", b"").decode("utf-8", "replace"),
            filename=options.get(b"filename", b"").decode("utf-8", "replace"),
            content_type=self._headers.get(b"content-type", b"").decode("latin-1").strip(),
        )

    def _finish(self) -> None:
        self._complete = True


class Part(NamedTuple):
    """One part of a form in memory."""

    name: str
    content_type: str
    body: bytes
    filename: str = ""


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """Return the parts of a form.

    Raises:
        InvalidRequest: the body is not a form, is incomplete, or has more than MAX_PARTS parts.
    """
    heads: list[PartHead] = []
    bodies: list[list[bytes]] = []

    def begin(head: PartHead) -> None:
        if len(heads) >= MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts", hint="Send fewer.")
        heads.append(head)
        bodies.append([])

    reader = MultipartReader(content_type, begin, lambda data: bodies[-1].append(data), _nothing)
    try:
        reader.feed(body)
    finally:
        reader.close()
    reader.check_complete()
    return [
        Part(head.name, head.content_type, b"".join(pieces), head.filename)
        for head, pieces in zip(heads, bodies, strict=True)
    ]


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
        self._in_file = False
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

    def _begin(self, head: PartHead) -> None:
        if len(self.fields) >= FIELDS_MAX:
            raise InvalidRequest(f"the form has more than {FIELDS_MAX} fields")
        self._value = bytearray()
        self._field = head.name
        self._in_file = head.name == FILE_FIELD
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


def _nothing() -> None:
    pass
