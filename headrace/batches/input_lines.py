"""The lines of a batch's input: split from the chunks of a file, and read as requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from headrace.batches.files.store import FileReader
from headrace.batches.record import LineError, endpoint_model
from headrace.jobs.options import DEFAULT_OPTIONS, METADATA_MAX_BYTES, JobOptions
from headrace.redis.keys import STEPS

#: The batch priority, for lines without a priority.
PRIORITY: Final = STEPS[-1]
#: The shortest result_ttl, in seconds. A job that expires before its row is written would have to
#: run again.
RESULT_TTL_MIN_S: Final = 86_400
CUSTOM_ID_MAX_CHARS: Final = 512
BOM: Final = b"\xef\xbb\xbf"
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


class BatchLine(NamedTuple):
    """One line of a file. Blank lines are skipped, but counted.

    Attributes:
        number: its number, from 1.
        end: the byte of the file behind it.
        text: its text without the line feed; None if it is too long.
    """

    number: int
    end: int
    text: bytes | None


def read_lines(
    reader: FileReader, limit_bytes: int, at: int = 0, number: int = 0
) -> Iterator[BatchLine]:
    """Yield the lines from a byte on; memory holds at most `limit_bytes` of a line.

    Args:
        reader: the file.
        limit_bytes: the most bytes of a line.
        at: where the first line begins.
        number: the number of the line before it.

    Raises:
        FileMissing: the file is gone.
        StoreError, BrokerError: the store is unavailable.
    """
    begun: list[bytes] = []
    size, first = 0, at == 0

    def line(piece: bytes) -> BatchLine | None:
        length = size + len(piece)
        text = None if length > limit_bytes else b"".join([*begun, piece])
        if text is not None and first:
            text = text.removeprefix(BOM)
        if text is not None and (not text or text.isspace()):
            return None
        return BatchLine(number, at, text)

    for chunk in reader.chunks(at):
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            number += 1
            at += len(piece) + 1
            found = line(piece)
            begun, size, first = [], 0, False
            if found is not None:
                yield found
        at += len(rest)
        size += len(rest)
        begun = [*begun, rest] if size <= limit_bytes else []
    if size:
        number += 1
        found = line(b"")
        if found is not None:
            yield found


class BatchLineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a line.

    Attributes:
        input: JSON text; None if the line has an `input_ref`.
        options: the job's options, by name.
    """

    custom_id: str
    model: str
    input: msgspec.Raw | None
    options: dict[str, Any]
    version: str | None = None
    input_ref: str | None = None
    content_type: str | None = None

    def job_line(self, job_id: str) -> bytes:
        """Return the line of a bulk submit."""
        line = {
            "model": self.model, "id": job_id, "input": self.input, "options": self.options,
            "version": self.version, "input_ref": self.input_ref,
            "content_type": self.content_type,
        }  # fmt: skip
        return msgspec.json.encode(
            {name: value for name, value in line.items() if value is not None}
        )


class BadLine(Exception):
    """A line is not a valid request.

    Attributes:
        error: the reason.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = LineError(code, message, None, param)

    def at(self, number: int) -> LineError:
        """Return the error with the line's number."""
        return msgspec.structs.replace(self.error, line=number)


#: The value of an absent member.
_NONE: Final = msgspec.Raw(b"")


class _LineFields(msgspec.Struct):
    custom_id: msgspec.Raw = _NONE
    method: msgspec.Raw = _NONE
    url: msgspec.Raw = _NONE
    body: msgspec.Raw = _NONE


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a line for JOBS_ENDPOINT: that of a submit, without an id."""

    model: str
    input: msgspec.Raw = _NONE
    input_ref: str | None = None
    content_type: str | None = None
    version: str | None = None
    options: JobOptions = DEFAULT_OPTIONS


class _GivenOptions(msgspec.Struct):
    options: dict[str, Any] = {}


_LINE: Final = msgspec.json.Decoder(_LineFields)
_JOB: Final = msgspec.json.Decoder(_Job)
_GIVEN: Final = msgspec.json.Decoder(_GivenOptions)


class Requests:
    """Reads lines as requests of one batch.

    Args:
        endpoint: the endpoint of the batch.
        models: the versions of all models, by name.
    """

    def __init__(self, endpoint: str, models: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._model = endpoint_model(endpoint)
        self._models = models

    def read(self, text: bytes) -> BatchLineRequest:
        """Read a line.

        Raises:
            BadLine: it is not a valid request of this batch.
        """
        line = _decoded(text)
        custom_id = _text(line.custom_id, "custom_id")
        if not custom_id or len(custom_id) > CUSTOM_ID_MAX_CHARS:
            raise BadLine(
                "invalid_custom_id",
                f"custom_id must have 1 to {CUSTOM_ID_MAX_CHARS} characters",
                "custom_id",
            )
        method = _text(line.method, "method")
        if method != "POST":
            raise BadLine("invalid_method", f"method must be 'POST', not {method[:32]!r}", "method")
        path, _, query = _text(line.url, "url").partition("?")
        if path != self._endpoint:
            raise BadLine(
                "mismatched_url",
                f"url must be the batch's endpoint {self._endpoint!r}, not {path[:200]!r}",
                "url",
            )
        if not line.body:
            raise BadLine("missing_required_parameter", "the line has no body", "body")
        if self._model is None:
            return self._job(custom_id, query, line.body)
        options = _options_of(query)
        self._check_model(self._model, None)
        return BatchLineRequest(
            custom_id=custom_id, model=self._model, input=line.body,
            options=_with_defaults(options),
        )  # fmt: skip

    def _job(self, custom_id: str, query: str, body: msgspec.Raw) -> BatchLineRequest:
        if query:
            raise BadLine(
                "invalid_url",
                "url must have no query; put options into `options` of the body",
                "url",
            )
        try:
            job = _JOB.decode(body)
            given = _GIVEN.decode(body).options
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine("invalid_body", f"body: {_plain(error)}", "body") from None
        self._check_model(job.model, job.version)
        if bool(job.input) == (job.input_ref is not None):
            raise BadLine("invalid_body", "body must have either input or input_ref", "body")
        _check_metadata(job.options)
        return BatchLineRequest(
            custom_id=custom_id, model=job.model, input=job.input or None, version=job.version,
            input_ref=job.input_ref, content_type=job.content_type, options=_with_defaults(given),
        )  # fmt: skip

    def _check_model(self, model: str, version: str | None) -> None:
        known = self._models.get(model)
        if known is None:
            there = ", ".join(self._models) or "none"
            raise BadLine(
                "model_not_found",
                f"there is no model {model[:64]!r}; the models are: {there}",
                "body",
            )
        if version is not None and version != known:
            raise BadLine(
                "model_not_found",
                f"model {model} has version {known}, not {version[:64]!r}",
                "body",
            )


def _decoded(text: bytes) -> _LineFields:
    if text.startswith(_UTF16):
        raise BadLine("invalid_json_line", "the file is UTF-16; convert it to UTF-8")
    try:
        if not text.isascii():
            text.decode()
        return _LINE.decode(text)
    except msgspec.ValidationError:
        raise BadLine("invalid_json_line", "the line is not a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine("invalid_json_line", f"the line is not JSON: {error}") from None


def _text(raw: msgspec.Raw, name: str) -> str:
    if not raw:
        raise BadLine("missing_required_parameter", f"the line has no {name}", name)
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        raise BadLine("invalid_type", f"{name} must be a string", name) from None


def _options_of(query: str) -> dict[str, Any]:
    """Return the options in the query of a url, which are those of a submit."""
    if not query:
        return {}
    try:
        given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True))
        if "metadata" in given:
            given["metadata"] = msgspec.json.decode(given["metadata"])
        options = msgspec.convert(given, JobOptions, strict=False)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadLine("invalid_url", f"url: {_plain(error)}", "url") from None
    _check_metadata(options)
    return {name: getattr(options, name) for name in given}


def _with_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a line with the defaults of a batch."""
    options = {"priority": PRIORITY, **given}
    if options.get("result_ttl") is not None:
        options["result_ttl"] = max(options["result_ttl"], RESULT_TTL_MIN_S)
    return options


def _check_metadata(options: JobOptions) -> None:
    if options.metadata is not None:
        size = len(msgspec.json.encode(options.metadata))
        if size > METADATA_MAX_BYTES:
            raise BadLine(
                "invalid_body", f"metadata has {size} bytes, more than {METADATA_MAX_BYTES}", "body"
            )


def _plain(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
