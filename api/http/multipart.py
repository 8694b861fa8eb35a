"""The parts of a multipart/form-data body that has come in whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.errors import InvalidRequest

MAX_PARTS: Final = 100


@dataclass(slots=True)
class Part:
    """One part.

    Attributes:
        name: the form field.
        content_type: as the client gave it; "" for none.
    """

    name: str
    content_type: str
    body: bytes


@dataclass(slots=True)
class _Reader:
    """Takes the parser's callbacks."""

    parts: list[Part] = field(default_factory=list)
    complete: bool = False
    _name: bytes = b""
    _value: bytes = b""
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _chunks: list[bytes] = field(default_factory=list)

    def begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts", hint="Send one.")
        self._name, self._value = b"", b""
        self._headers, self._chunks = {}, []

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self.parts.append(
            Part(
                name=options.get(b"name", b"").decode("utf-8", "replace"),
                content_type=self._headers.get(b"content-type", b"").decode("latin-1").strip(),
                body=b"".join(self._chunks),
            )
        )

    def finish(self) -> None:
        self.complete = True


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """Read a form.

    Raises:
        InvalidRequest: it is not what its type says, or does not end.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest(
            "Content-Type multipart/form-data names no boundary",
            hint="Let your HTTP client write this header, as curl -F does.",
        )
    reader = _Reader()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_header_field": reader.header_name,
                "on_header_value": reader.header_value,
                "on_header_end": reader.header_end,
                "on_end": reader.finish,
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidRequest(f"the multipart body cannot be read: {error}") from None
    if not reader.complete:
        raise InvalidRequest(
            "the multipart body ends before its last boundary", hint="Send all of it."
        )
    return reader.parts
