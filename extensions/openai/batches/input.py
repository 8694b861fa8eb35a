"""The input of a batch: its lines as requests, their check before any runs, and a run's source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from urllib.parse import parse_qsl

import msgspec
from typing_extensions import override

from extensions.openai.batches.files import FileReader, FileStore
from extensions.openai.batches.store import (
    OPENAI_ENDPOINTS,
    BatchRecord,
    LineError,
    endpoint_model,
)
from extensions.openai.schema.batch_lines import PARAM, line_job
from extensions.openai.schema.errors import openai_error
from headrace.errors import InvalidParameter, InvalidRequest
from headrace.jobs.options import METADATA_MAX_BYTES, JobOptions
from headrace.jobs.values.media_types import BOM, UTF16_MARKS
from headrace.redis.keys import STEPS
from headrace.runs.interfaces import Cursor, Entry, Source
from headrace.schema.lines import JobRequest, NamedJobRequest

#: The batch priority, for lines without a priority.
PRIORITY: Final = STEPS[-1]
#: The shortest result_ttl, in seconds. A job that expires before its row is written would have to
#: run again.
RESULT_TTL_MIN_S: Final = 86_400
CUSTOM_ID_MAX_CHARS: Final = 512
#: The most errors that a validation reports.
ERRORS_MAX: Final = 100
#: A validation calls `check_stop` after this many lines.
_CHECK_LINES: Final = 1000


class BatchLine(NamedTuple):
    """One line of a file. Blank lines are skipped, but counted.

    Attributes:
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
        job: the submit; the API checks its parameters.
        shown: what the row needs of the request besides its model.
    """

    custom_id: str
    job: NamedJobRequest
    shown: dict[str, str] = {}

    def job_line(self, job_id: str) -> bytes:
        """Return the line of a bulk submit."""
        return msgspec.json.encode(JobRequest(id=job_id, **msgspec.structs.asdict(self.job)))


class BadLine(Exception):
    """A line is not a valid request."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = LineError(code, message, None, param)

    def at(self, number: int) -> LineError:
        """Return the error with the line's number."""
        return msgspec.structs.replace(self.error, line=number)


class RefusedLine(BadLine):
    """The endpoint of a line would refuse its body; the line fails alone."""

    def __init__(self, custom_id: str, refusal: InvalidRequest) -> None:
        super().__init__("invalid_body", f"body: {refusal.message}", "body")
        self.custom_id = custom_id
        self.refusal = refusal

    def entry(self, n: int, cursor: Cursor) -> Entry:
        """Return the entry of the line, which has the error in place of an input."""
        detail = openai_error(self.refusal).error
        error = InvalidRequest(detail.message)
        error.code = detail.code
        carried = {PARAM: msgspec.Raw(msgspec.json.encode(detail.param))}
        return Entry(n, self.custom_id, error, carried, cursor)


#: The value of an absent member.
_NONE: Final = msgspec.Raw(b"")


class _LineFields(msgspec.Struct):
    custom_id: msgspec.Raw = _NONE
    method: msgspec.Raw = _NONE
    url: msgspec.Raw = _NONE
    body: msgspec.Raw = _NONE


class _GivenOptions(msgspec.Struct):
    options: dict[str, Any] = {}


_LINE: Final = msgspec.json.Decoder(_LineFields)
#: The body of a line for JOBS_ENDPOINT: that of a submit, without an id.
_JOB: Final = msgspec.json.Decoder(NamedJobRequest)
_GIVEN: Final = msgspec.json.Decoder(_GivenOptions)


class Requests:
    """Reads lines as requests of one batch.

    `parameters` are those of the endpoint's model; a line has them in the query of its url.
    """

    def __init__(
        self, endpoint: str, models: Mapping[str, Sequence[str]], parameters: Collection[str] = ()
    ) -> None:
        self._endpoint = endpoint
        self._parameters = parameters
        self._model, self._version = endpoint_model(endpoint)
        self._models = models

    def read(self, text: bytes) -> BatchLineRequest:
        """Read a line.

        Raises:
            RefusedLine: its endpoint would refuse it.
            BadLine: it is not a valid line of this batch.
        """
        line = _decoded(text)
        custom_id = _text(line.custom_id, "custom_id")
        if not custom_id or len(custom_id) > CUSTOM_ID_MAX_CHARS:
            message = f"custom_id must have 1 to {CUSTOM_ID_MAX_CHARS} characters"
            raise BadLine("invalid_custom_id", message, "custom_id")
        method = _text(line.method, "method")
        if method != "POST":
            raise BadLine("invalid_method", f"method must be 'POST', not {method[:32]!r}", "method")
        path, _, query = _text(line.url, "url").partition("?")
        if path != self._endpoint:
            message = f"url must be the batch's endpoint {self._endpoint!r}, not {path[:200]!r}"
            raise BadLine("mismatched_url", message, "url")
        if not line.body:
            raise BadLine("missing_required_parameter", "the line has no body", "body")
        if self._endpoint in OPENAI_ENDPOINTS:
            return self._openai(custom_id, query, line.body)
        if self._model is None:
            return self._job(custom_id, query, line.body)
        given = _parsed(query)
        parameters = {name: given.pop(name) for name in self._parameters if name in given}
        options = _options_of(given)
        self._check_model(self._model, self._version)
        job = NamedJobRequest(
            self._model, line.body, version=self._version, parameters=parameters or None,
            options=_with_defaults(options),
        )  # fmt: skip
        return BatchLineRequest(custom_id=custom_id, job=job)

    def _openai(self, custom_id: str, query: str, body: msgspec.Raw) -> BatchLineRequest:
        if query:
            raise BadLine("invalid_url", "url must have no query", "url")
        try:
            job = line_job(self._endpoint, body)
            _check_metadata(job.metadata)
        except InvalidRequest as error:
            raise RefusedLine(custom_id, error) from None
        except BadLine as error:
            raise RefusedLine(
                custom_id, InvalidParameter(error.error.message, "metadata")
            ) from None
        self._check_model(job.model, None)
        options = {} if job.metadata is None else {"metadata": job.metadata}
        submit = NamedJobRequest(job.model, job.input, options=_with_defaults(options))
        return BatchLineRequest(custom_id=custom_id, job=submit, shown=job.shown)

    def _job(self, custom_id: str, query: str, body: msgspec.Raw) -> BatchLineRequest:
        if query:
            message = "url must have no query; put options into `options` of the body"
            raise BadLine("invalid_url", message, "url")
        try:
            job = _JOB.decode(body)
            given = _GIVEN.decode(body).options
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine("invalid_body", f"body: {_plain(error)}", "body") from None
        self._check_model(job.model, job.version)
        if bool(job.input) == (job.input_ref is not None):
            raise BadLine("invalid_body", "body must have either input or input_ref", "body")
        _check_metadata(job.options.metadata)
        job.options = _with_defaults(given)
        return BatchLineRequest(custom_id=custom_id, job=job)

    def _check_model(self, model: str, version: str | None) -> None:
        known = self._models.get(model)
        if known is None:
            there = ", ".join(self._models) or "none"
            message = f"there is no model {model[:64]!r}; the models are: {there}"
            raise BadLine("model_not_found", message, "body")
        if version is not None and version not in known:
            plural = "versions" if len(known) > 1 else "version"
            message = f"model {model} has {plural} {', '.join(known)}, not {version[:64]!r}"
            raise BadLine("model_not_found", message, "body")


def _decoded(text: bytes) -> _LineFields:
    if text.startswith(UTF16_MARKS):
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


def _parsed(query: str) -> dict[str, Any]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise BadLine("invalid_url", f"url: {_plain(error)}", "url") from None


def _options_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options in the query of a url, which are those of a submit."""
    try:
        if "metadata" in given:
            given["metadata"] = msgspec.json.decode(given["metadata"])
        options = msgspec.convert(given, JobOptions, strict=False)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadLine("invalid_url", f"url: {_plain(error)}", "url") from None
    _check_metadata(options.metadata)
    return {name: getattr(options, name) for name in given}


def _with_defaults(given: dict[str, Any]) -> JobOptions:
    """Return the options of a line with the defaults of a batch."""
    options = {"priority": PRIORITY, **given}
    if options.get("result_ttl") is not None:
        options["result_ttl"] = max(options["result_ttl"], RESULT_TTL_MIN_S)
    # A line has only the options that are given.
    return cast("JobOptions", options)


def _check_metadata(metadata: dict[str, Any] | None) -> None:
    size = len(msgspec.json.encode(metadata))
    if size > METADATA_MAX_BYTES:
        message = f"metadata has {size} bytes, more than {METADATA_MAX_BYTES}"
        raise BadLine("invalid_body", message, "body")


def _plain(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


@dataclass(slots=True)
class ValidationResult:
    """The result of a validation.

    Attributes:
        bad: the number of all errors.
    """

    total: int = 0
    errors: list[LineError] = field(default_factory=list)
    bad: int = 0

    def add(self, error: LineError) -> None:
        """Count an error, and report it if it is among the first."""
        self.bad += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


def validate(
    lines: Iterable[BatchLine],
    requests: Requests,
    *,
    max_lines: int,
    limit_bytes: int,
    check_stop: Callable[[], None] = lambda: None,
) -> ValidationResult:
    """Check every line.

    Memory grows by about 100 bytes with each line, to find duplicate ids.

    Args:
        limit_bytes: the most bytes of a line, for the message.
        check_stop: called after every _CHECK_LINES lines; an exception ends the validation.
    """
    found = ValidationResult()
    seen: set[bytes] = set()
    for line in lines:
        found.total += 1
        if found.total % _CHECK_LINES == 0:
            check_stop()
        if found.total > max_lines:
            message = (
                f"the file has more than {max_lines} requests; split it, or raise "
                "batch_max_lines (HEADRACE_BATCH_MAX_LINES)"
            )
            found.add(LineError("too_many_lines", message, line.number))
            break
        try:
            _check(line, requests, seen, limit_bytes)
        except BadLine as error:
            found.add(error.at(line.number))
    if not found.total:
        found.add(LineError("empty_file", "the file has no requests"))
    return found


def _check(line: BatchLine, requests: Requests, seen: set[bytes], limit_bytes: int) -> None:
    if line.text is None:
        message = f"the line has more than {limit_bytes} bytes (body_limit_bytes)"
        raise BadLine("line_too_long", message)
    try:
        custom_id = requests.read(line.text).custom_id
    except RefusedLine as error:
        custom_id = error.custom_id
    digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
    if digest in seen:
        message = f"custom_id {custom_id[:128]!r} is also on an earlier line"
        raise BadLine("duplicate_custom_id", message, "custom_id")
    seen.add(digest)


@dataclass(frozen=True, slots=True)
class BatchSource(Source):
    """The requests of a batch, in the order of their lines.

    Attributes:
        only: the custom_ids of the requests to run; None for all.
    """

    files: FileStore
    batch: BatchRecord
    requests: Requests
    limit_bytes: int
    only: Collection[str] | None

    @override
    def describe(self) -> dict[str, Any]:
        spec = self.batch.spec
        return {"kind": "batch", "file": spec.input_file_id, "failed_in": spec.failed_file_id}

    @override
    def count(self) -> int | None:
        return self.batch.total

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        # A cursor is the byte where a line ends, and the line's number.
        at, number = (0, 0) if after is None else (int(after[0]), int(after[1]))
        reader = self.files.open(self.batch.spec.input_file_id)
        for line in read_lines(reader, self.limit_bytes, at, number):
            entry = self._entry(n, line)
            if self.only is None or entry.key in self.only:
                yield entry
                n += 1

    def _entry(self, n: int, line: BatchLine) -> Entry:
        cursor = [line.end, line.number]
        try:
            request = self.requests.read(line.text or b"")
        except RefusedLine as error:
            return error.entry(n, cursor)
        except BadLine as error:
            # The line was valid when the batch began, so its model has been removed.
            return Entry(n, _id_of(line), InvalidRequest(error.error.message), {}, cursor)
        shown = {"model": request.job.model, **request.shown}
        carried = {name: msgspec.Raw(msgspec.json.encode(one)) for name, one in shown.items()}
        return Entry(n, request.custom_id, request.job_line, carried, cursor)


class _Id(msgspec.Struct):
    custom_id: str


def _id_of(line: BatchLine) -> str:
    return msgspec.json.decode(line.text or b"", type=_Id).custom_id


def failed_ids(files: FileStore, file_id: str, limit_bytes: int) -> set[str]:
    """Return the custom_ids in an error file.

    Raises:
        FileMissing: the file is gone.
        StoreError, BrokerError: the store is unavailable.
    """
    lines = read_lines(files.open(file_id), limit_bytes)
    return {_id_of(line) for line in lines if line.text is not None}
