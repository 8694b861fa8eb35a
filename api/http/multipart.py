"""Read multipart/form-data as it arrives. Independent of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.errors import InvalidRequest

MAX_PARTS: Final = 100
#: The most bytes before the first part and after the last one, which are ignored.
OUTSIDE_MAX_BYTES: Final = 64 * 1024


class PartHead(NamedTuple):
    """The headers of one part.

    Attributes:
        filename: "" for none.
        content_type: as the client sent it; "" for none.
    """

    name: str
    filename: str
    content_type: str


_LET_THE_CLIENT: Final = "Let your HTTP client write this header and the body, as curl -F does."


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
                hint=_LET_THE_CLIENT,
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
                what = f"the multipart body cannot be read: {error}"
                if not self._begun:
                    what = "the multipart body does not begin with the boundary of its Content-Type"
                raise InvalidRequest(what, hint=_LET_THE_CLIENT) from None
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


def _nothing() -> None:
    pass
