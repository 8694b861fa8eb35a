"""Writing the message of a job: a Celery protocol 2 task in kombu's Redis envelope."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs.input_details import InputDetails
from headrace.jobs.message import InputSource, shown_arguments
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.jobs.trace_context import TRACEPARENT, TRACESTATE, Trace
from headrace.jobs.values.encoding import described_in_json
from headrace.redis.keys import TASK_NAME

_encode: Final = msgspec.json.encode
# jobs/claim.lua recognizes our own messages by `{"headers":{"id":"…","task":"…",` and this end.
_TAIL: Final = b'"content-encoding":"utf-8","content-type":"application/json"'
#: The options in our own header.
_OWN_OPTIONS: Final = ("max_retries", "retry_backoff", "retry_backoff_max")
#: Where the jobs of a model differ: a character that no name has, and that JSON does not escape.
_SLOT: Final = "\x7f"


def write_message(
    job_id: str,
    model: str,
    queue: str,
    input_json: bytes,
    options: JobOptions = DEFAULT_OPTIONS,
    *,
    timeout_s: float | None = None,
    expires_at: str | None = None,
    source: InputSource | None = None,
    quiet: bool = False,
    trace: Trace | None = None,
    details: InputDetails | None = None,
    version: str = "",
) -> bytes:
    """Return a task message, ready for LPUSH.

    The body is plain JSON text (`body_encoding` utf-8), which kombu reads and which saves a third
    of the bytes. The caller has checked that id, model, queue and version need no escaping, and
    that `input_json` is one JSON value. A quiet job's message has only what readers need, as it is
    copied several times.

    Raises:
        InvalidRequest: the input is not UTF-8.
    """
    arguments = input_json
    own = _own_header(options, quiet) if source is None else _sourced_header(options, source, quiet)
    if details is not None:
        own = _with_details(own, details)
        if details.parameters:
            arguments = b'%b,"parameters":%b' % (input_json, details.parameters)
    text = _escaped(arguments)
    if version:
        own = _with_version(own, version)
    if trace is not None:
        # Celery's own instrumentation also puts it among the headers.
        own += _trace_headers(trace)
    expires = b"null" if expires_at is None else b'"%s"' % expires_at.encode()
    name = job_id.encode()
    if quiet:
        blank = _short_blank(model, queue, timeout_s, options.priority)
        return blank % (name, expires, own, name, text)
    described = described_in_json(input_json) if source is None else _encode(source.described)[1:-1]
    blank = _blank(model, queue, timeout_s, options.priority)
    return blank % (name, name, expires, described, own, name, name, text)


@lru_cache(maxsize=256)
def _blank(model: str, queue: str, timeout_s: float | None, priority: int) -> bytes:
    """Return the message of such jobs with a `%s` for each difference."""
    headers = (
        f'{{"id":"{_SLOT}","task":"{TASK_NAME}","lang":"py","root_id":"{_SLOT}","parent_id":null,'
        f'"group":null,"retries":0,"eta":null,"expires":{_SLOT},'
        f'"timelimit":[{"null" if timeout_s is None else repr(timeout_s)},null],"argsrepr":"()",'
        f'"kwargsrepr":{_encode(shown_arguments(model, _SLOT)).decode()},'
        f'"origin":"headrace","ignore_result":false,"headrace":{_SLOT}}}'
    )
    properties = (
        f'{{"correlation_id":"{_SLOT}","reply_to":"","delivery_mode":2,"delivery_info":'
        f'{{"exchange":"","routing_key":"{queue}"}},"priority":{priority},'
        f'"body_encoding":"utf-8","delivery_tag":"{_SLOT}"}}'
    )
    return _filled(headers, properties, model)


@lru_cache(maxsize=256)
def _short_blank(model: str, queue: str, timeout_s: float | None, priority: int) -> bytes:
    """The same for quiet jobs."""
    headers = (
        f'{{"id":"{_SLOT}","task":"{TASK_NAME}","expires":{_SLOT},'
        f'"timelimit":[{"null" if timeout_s is None else repr(timeout_s)},null],'
        f'"headrace":{_SLOT}}}'
    )
    properties = (
        f'{{"delivery_info":{{"exchange":"","routing_key":"{queue}"}},"priority":{priority},'
        f'"body_encoding":"utf-8","delivery_tag":"{_SLOT}"}}'
    )
    return _filled(headers, properties, model)


def quiet_pieces(
    model: str, queue: str, options: JobOptions, timeout_s: float | None, version: str = ""
) -> tuple[bytes, ...]:
    """Return the message of quiet jobs without `expires`, split at id, id and input."""
    slot = _SLOT.encode()
    blank = _short_blank(model, queue, timeout_s, options.priority)
    own = _own_header(options, True)
    if version:
        own = _with_version(own, version)
    return tuple((blank % (slot, b"null", own, slot, slot)).split(slot))


def quiet_message(pieces: tuple[bytes, ...], job_id: str, input_json: bytes) -> bytes:
    """Return the message of a quiet job from the pieces of its kind.

    Raises:
        InvalidRequest: the input is not UTF-8.
    """
    head, middle, before, after = pieces
    name = job_id.encode()
    return b"".join((head, name, middle, name, before, _escaped(input_json), after))


def _escaped(input_json: bytes) -> bytes:
    try:
        # The body is JSON inside JSON; escaping works char by char, so parts can be joined later.
        return _encode(input_json.decode())[1:-1]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the input is not UTF-8, as JSON must be: {error}") from None


def _filled(headers: str, properties: str, model: str) -> bytes:
    body = _encode(f'[[],{{"model":"{model}","input":{_SLOT}}},{{}}]').decode()
    text = f'{{"headers":{headers},"properties":{properties},"body":{body},{_TAIL.decode()}}}'
    return text.replace("%", "%%").replace(_SLOT, "%s").encode()


def _own_header(options: JobOptions, quiet: bool) -> bytes:
    if options is DEFAULT_OPTIONS and not quiet:
        return b"{}"
    return _own_text(options.max_retries, options.retry_backoff, options.retry_backoff_max, quiet)


@lru_cache(maxsize=256)
def _own_text(
    retries: int | None, backoff: float | None, backoff_max: float | None, quiet: bool
) -> bytes:
    options = JobOptions(max_retries=retries, retry_backoff=backoff, retry_backoff_max=backoff_max)
    return _encode(_own_options(options, quiet))


def _own_options(options: JobOptions, quiet: bool) -> dict[str, Any]:
    own: dict[str, Any] = {
        name: value for name in _OWN_OPTIONS if (value := getattr(options, name)) is not None
    }
    return {**own, "quiet": True} if quiet else own


def _with_version(own: bytes, version: str) -> bytes:
    rest = b"," if len(own) > len(b"{}") else b""
    return b'{"version":"%s"%s%s' % (version.encode(), rest, own[1:])


def _trace_headers(trace: Trace) -> bytes:
    headers = {TRACEPARENT: trace.parent, **({TRACESTATE: trace.state} if trace.state else {})}
    return b"," + _encode(headers)[1:-1]


def _with_details(own: bytes, details: InputDetails) -> bytes:
    named = ((b"headers", details.headers), (b"metadata", details.metadata),
             (b"nested", b"true" if details.nested else b""),
             (b"typed", b"true" if details.typed else b""))  # fmt: skip
    members = b",".join(b'"%b":%b' % pair for pair in named if pair[1])
    if not members:
        return own
    return b"%b%b%b}" % (own[:-1], b"" if own == b"{}" else b",", members)


def _sourced_header(options: JobOptions, source: InputSource, quiet: bool) -> bytes:
    named: dict[str, Any] = {"ref": source.ref} if source.ref else {"from": source.origin}
    if source.parts:
        named = {"parts": source.parts}
    own = _own_options(options, quiet)
    return _encode({**own, **named, "type": source.type, "size": source.size})
