"""Check inputs and results against a JSON Schema and content types.

The schema is compiled once. Nothing that it refers to is fetched, its patterns match in linear
time, and values beyond the bounds below are refused before they are parsed. So a check takes about
as long as parsing the value. Independent of Redis and HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.errors import ConfigError, FieldError, InvalidRequest
from headrace.jobs.values.encoding import binary_head, decode_input, decode_payload
from headrace.jobs.values.media_types import is_json

if TYPE_CHECKING:
    import jsonschema_rs

#: The most values of a checked JSON text: as Python objects they take about 100 MB.
VALUES_MAX: Final = 1_000_000
#: The deepest checked JSON. The validator calls itself for each level, on the stack.
DEPTH_MAX: Final = 100
#: Each mistake takes some microseconds to report, so only a small value gets all of its own.
ALL_ERRORS_VALUES: Final = 64
#: The most mistakes of one answer, and the most characters of each of their texts.
ERRORS_MAX: Final = 10
TEXT_MAX_CHARS: Final = 200
NAME_MAX_CHARS: Final = 64
#: How messages call a value: a client's own value is in no answer and no log.
_MASK: Final = "the value"
_JSON: Final = "JSON"


class SchemaProblem(Exception):
    """A JSON Schema cannot be used: at which keys (`where`), what is wrong, and what to do."""

    def __init__(self, where: Sequence[str | int], text: str) -> None:
        super().__init__(text)
        self.where = tuple(where)
        self.text = text


class ValueCheck:
    """Checks values. One that is made once serves all threads.

    Args:
        schema: the schema of JSON values, and of text whose type is not in `content_types`; None
            accepts only `content_types`.
        content_types: the accepted types of bytes, such as `image/png` or `image/*`.

    Raises:
        SchemaProblem: the schema is not valid.
        ConfigError: the library that checks schemas is not installed.
    """

    def __init__(self, schema: Mapping[str, Any] | None, content_types: Iterable[str] = ()) -> None:
        self._schema = schema
        self._validator = None if schema is None else _compiled(schema)
        names = list(content_types)
        self._types = frozenset(names)
        self._families = tuple(name[:-1] for name in names if name.endswith("/*"))
        self.expected = " or ".join([*names, *([] if schema is None else [_JSON])])

    def of_input(self, raw: bytes) -> list[FieldError]:
        """Return the mistakes of an input in wire form, bytes as they are; or InvalidRequest."""
        head = binary_head(raw, 0)
        if head is not None and not _parsed(head[0]) and self.accepts(head[0]):
            return []
        return self.read(raw)[2]

    def of_payload(self, body: bytes, content_type: str) -> list[FieldError]:
        """Return the mistakes of a payload of a type, "" for JSON; or raise InvalidRequest."""
        if content_type and not _parsed(content_type):
            return self._of_value(b"", content_type, None)
        return self.read(body, content_type)[2] if content_type else self.of_input(body)

    def of_reference(self, content_type: str) -> list[FieldError]:
        """Return the mistakes of an input of which the type is known; JSON and text may fit."""
        if self._validator is not None and _parsed(content_type):
            return []
        return self._of_value(b"", content_type, None)

    def read(self, raw: bytes, content_type: str = "") -> tuple[Any, str, list[FieldError]]:
        """Return an input as the handler gets it, its type, and its mistakes; or InvalidRequest."""
        bounds = _Bounds()
        try:
            if content_type:
                value, kind = decode_payload(raw, content_type, bounds.check)
            else:
                value, kind = decode_input(raw, bounds.check)
        except _BeyondBoundsError as error:
            return None, content_type, [error.mistake]
        return value, kind, self._of_value(value, kind, bounds)

    def accepts(self, content_type: str) -> bool:
        """Return whether it is one of the content types."""
        kind = content_type.partition(";")[0].strip().lower()
        return kind in self._types or (bool(self._families) and kind.startswith(self._families))

    def _of_value(self, value: Any, content_type: str, bounds: _Bounds | None) -> list[FieldError]:
        parsed = _parsed(content_type)
        if self.accepts(content_type) and not (
            parsed and self._validator and is_json(content_type)
        ):
            return []
        if self._validator is None or not parsed:
            kind = _JSON if is_json(content_type) else content_type
            wrong = f"{_MASK} is {kind[:NAME_MAX_CHARS]}, not {self.expected}"
            return [FieldError("", _short(wrong), _short(self.expected))]
        if bounds is not None and bounds.brackets > DEPTH_MAX and _too_deep(value):
            return [_TOO_DEEP]
        try:
            if self._validator.is_valid(value):
                return []
            every = bounds is None or bounds.values <= ALL_ERRORS_VALUES
            mistakes = [
                mistake
                for error in _errors(self._validator, value, every=every)
                for mistake in self._described(error)
            ]
        except ValueError:
            # Python's own JSON has numbers and texts that JSON does not have.
            return [_NO_JSON]
        return mistakes[:ERRORS_MAX]

    def _described(self, error: jsonschema_rs.ValidationError) -> Iterator[FieldError]:
        """Yield a validator's error: a missing or an unknown field has its own path."""
        name, kind = error.kind.name, error.kind
        path = list(error.instance_path)
        if name == "required":
            yield FieldError(_pointer([*path, kind.value]), "the field is missing", "required")
        elif name in ("additionalProperties", "unevaluatedProperties"):
            names = ", ".join(self._fields(error))
            known = _short(f"one of {names}") if names else "no such field"
            for unknown in kind.value[:ERRORS_MAX]:
                yield FieldError(_pointer([*path, unknown]), "the field is unknown", known)
        else:
            limit: Any = kind.value if name not in _WITHOUT_LIMIT else None
            if name == "type":
                limit = " or ".join(limit)
            expected = name if limit is None else f"{name}: {_text(limit)}"
            yield FieldError(_pointer(path), _short(_message(error)), _short(expected))

    def _fields(self, error: jsonschema_rs.ValidationError) -> list[str]:
        """Return the names of the fields next to a keyword of the schema."""
        section: Any = self._schema
        try:
            for step in error.schema_path[:-1]:
                section = section[step]
            return list(section["properties"])
        except (LookupError, TypeError):  # none, or the path leads through a reference
            return []


def _errors(
    validator: jsonschema_rs.Validator, value: Any, *, every: bool
) -> list[jsonschema_rs.ValidationError]:
    """Return the validator's errors, or the first one; raise ValueError if it is not JSON."""
    import jsonschema_rs

    if every:
        return list(validator.iter_errors(value))[:ERRORS_MAX]
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return [error]
    return []


def check_of(frame: Sequence[Any] | None) -> ValueCheck | None:
    """Return the check that the init frame of a model process describes; None without one."""
    return None if frame is None else ValueCheck(*frame)


def summary(mistakes: Sequence[FieldError], limit: int = 3) -> str:
    """Return the first mistakes on one line, for a message."""
    texts = [
        ": ".join(filter(None, (mistake.path, mistake.message))) for mistake in mistakes[:limit]
    ]
    left = len(mistakes) - len(texts)
    return "; ".join(texts) + (f"; and {left} more" if left else "")


class _BeyondBoundsError(InvalidRequest):
    def __init__(self, mistake: FieldError) -> None:
        super().__init__(mistake.message)
        self.mistake = mistake


class _Bounds:
    """Counts, before parsing, how many values and brackets a JSON text can have at most."""

    __slots__ = ("brackets", "values")

    def __init__(self) -> None:
        self.brackets = 0
        self.values = 0

    def check(self, text: bytes) -> None:
        """Raise if the text can hold more than VALUES_MAX values."""
        self.brackets = text.count(b"[") + text.count(b"{")
        self.values = self.brackets + text.count(b",") + 1
        if self.values > VALUES_MAX:
            raise _BeyondBoundsError(_TOO_MANY)


_TOO_MANY: Final = FieldError(
    "", f"{_MASK} has more than {VALUES_MAX} numbers, texts and lists", "less, or bytes"
)
_NO_JSON: Final = FieldError("", f"{_MASK} has a number or a text that JSON does not have", "JSON")
_TOO_DEEP: Final = FieldError(
    "", f"{_MASK} is nested more than {DEPTH_MAX} levels deep", f"at most {DEPTH_MAX} levels"
)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        below: list[Any] = []
        for container in level:
            members = container.values() if type(container) is dict else container
            below += [member for member in members if type(member) in (dict, list)]
        if not below:
            return False
        level = below
    return True


def _parsed(content_type: str) -> bool:
    """Return whether the handler gets such an input as a JSON value or as text."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or is_json(kind)


def _compiled(schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    try:
        import jsonschema_rs
    except ImportError:
        raise ConfigError(
            "the package jsonschema-rs, which checks inputs, is not installed",
            hint="pip install 'headrace[server]'",
        ) from None
    given = dict(schema)
    try:
        return jsonschema_rs.validator_for(
            given,
            validate_formats=True,
            mask=_MASK,
            pattern_options=jsonschema_rs.RegexOptions(),
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaProblem(error.instance_path, _schema_mistake(error)) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise SchemaProblem((), f"it cannot be compiled: {error}") from None


def _schema_mistake(error: jsonschema_rs.ValidationError) -> str:
    where, name = list(error.instance_path), error.kind.name
    last = where[-1] if where else ""
    if last == "type" and name == "anyOf":
        kinds = "string, number, integer, boolean, array, object or null"
        return f"{_short(_text(error.instance))} is no type; use {kinds}"
    if last == "pattern":
        return (
            "not a pattern that matches in linear time; correct it, or leave out look-around and "
            "back-references"
        )
    if "Unknown meta-schema" in error.message:
        return "its $schema is unknown; use https://json-schema.org/draft/2020-12/schema, or none"
    if name in ("$ref", "referencing"):
        return "its $ref is not in the schema; nothing is fetched, so copy it below $defs"
    return _short(error.message)


#: The keywords whose error has no value, or has the errors of each alternative.
_WITHOUT_LIMIT: Final = frozenset(
    {"anyOf", "oneOf", "not", "contains", "uniqueItems", "propertyNames", "falseSchema"}
)


def _message(error: jsonschema_rs.ValidationError) -> str:
    if error.kind.name in ("anyOf", "oneOf"):
        return f"{_MASK} does not fit one of the alternatives"
    if error.kind.name == "falseSchema":
        return f"{_MASK} is not allowed here"
    if error.kind.name == "propertyNames":
        return "the name of a field does not fit"
    return error.message.partition("\n")[0]


def _pointer(path: Iterable[str | int]) -> str:
    """Return a JSON pointer (RFC 6901); names are shortened, as they may be a client's."""
    steps = (str(step)[:NAME_MAX_CHARS].replace("~", "~0").replace("/", "~1") for step in path)
    return _short("".join(f"/{step}" for step in steps))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX_CHARS else f"{text[: TEXT_MAX_CHARS - 1]}…"
