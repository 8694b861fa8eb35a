"""Writing the message of a job: a Celery protocol 2 task in kombu's Redis envelope."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs.message import InputSource, shown_arguments
from headrace.jobs.options import DEFAULT_OPTIONS, InputDetails, JobOptions
from headrace.jobs.trace_context import TRACEPARENT, TRACESTATE, Trace
from headrace.jobs.values.encoding import describe_input
from headrace.redis.keys import TASK_NAME

_encode: Final = msgspec.json.encode
# jobs/claim.lua recognizes our own messages by `{"headers":{"id":"…","task":"…",` and this end.
_TAIL: Final = '"content-encoding":"utf-8","content-type":"application/json"'
#: The options in our own header.
_OWN_OPTIONS: Final = ("max_retries", "retry_backoff", "retry_backoff_max")
#: Where the jobs of a model differ: a character that no name has, and that JSON does not escape.
_SLOT: Final = "\x7f"


class Blank(msgspec.Struct, frozen=True):
    """The message of the jobs of one kind.

    Attributes:
        text: with a `%s` for each difference.
        own: what all of them have in our own header.
        quiet: the message has only what readers need, as it is copied several times.
    """

    text: bytes
    own: bytes
    quiet: bool


def blank_message(
    model: str,
    queue: str,
    options: JobOptions = DEFAULT_OPTIONS,
    *,
    timeout_s: float | None = None,
    quiet: bool = False,
    version: str = "",
) -> Blank:
    """Return what `write_message` fills in.

    The caller has checked that model, queue and version need no escaping.
    """
    headers = f'"id":"{_SLOT}","task":"{TASK_NAME}"'
    limits = f'"expires":{_SLOT},"timelimit":[{_encode(timeout_s).decode()},null]'
    properties = (
        f'"delivery_info":{{"exchange":"","routing_key":"{queue}"}},'
        f'"priority":{options.priority},"body_encoding":"utf-8","delivery_tag":"{_SLOT}"'
    )
    if quiet:
        headers = f"{headers},{limits}"
    else:
        headers = (
            f'{headers},"lang":"py","root_id":"{_SLOT}","parent_id":null,"group":null,"retries":0,'
            f'"eta":null,{limits},"argsrepr":"()",'
            f'"kwargsrepr":{_encode(shown_arguments(model, _SLOT)).decode()},'
            '"origin":"headrace","ignore_result":false'
        )
        properties = f'"correlation_id":"{_SLOT}","reply_to":"","delivery_mode":2,{properties}'
    body = _encode(f'[[],{{"model":"{model}","input":{_SLOT}}},{{}}]').decode()
    text = (
        f'{{"headers":{{{headers},"headrace":{_SLOT}}},"properties":{{{properties}}},'
        f'"body":{body},{_TAIL}}}'
    )
    named = {name: getattr(options, name) for name in _OWN_OPTIONS}
    named = {"version": version or None, **named, "quiet": quiet or None}
    own = _encode({name: value for name, value in named.items() if value is not None})
    return Blank(text.replace("%", "%%").replace(_SLOT, "%s").encode(), own, quiet)


def write_message(
    blank: Blank,
    job_id: str,
    input_json: bytes,
    *,
    expires_at: str | None = None,
    source: InputSource | None = None,
    trace: Trace | None = None,
    details: InputDetails | None = None,
) -> bytes:
    """Return a task message, ready for LPUSH.

    The body is plain JSON text (`body_encoding` utf-8), which kombu reads and which saves a third
    of the bytes. The caller has checked that the id needs no escaping, and that `input_json` is one
    JSON value.

    Raises:
        InvalidRequest: the input is not UTF-8.
    """
    arguments, own = input_json, blank.own
    if source is not None:
        own = _joined(own, _of_source(source))
    if details is not None:
        own = _joined(own, msgspec.structs.replace(details, parameters=b"").text())
        if details.parameters:
            arguments = b'%b,"parameters":%b' % (input_json, details.parameters)
    text = _escaped(arguments)
    if trace is not None:
        # Celery's own instrumentation also puts it among the headers.
        headers = {TRACEPARENT: trace.parent, **({TRACESTATE: trace.state} if trace.state else {})}
        own += b"," + _encode(headers)[1:-1]
    expires = b"null" if expires_at is None else b'"%s"' % expires_at.encode()
    name = job_id.encode()
    if blank.quiet:
        return blank.text % (name, expires, own, name, text)
    described = describe_input(input_json) if source is None else source.described
    shown = _encode(described)[1:-1]
    return blank.text % (name, name, expires, shown, own, name, name, text)


def _escaped(input_json: bytes) -> bytes:
    try:
        # The body is JSON inside JSON; escaping works char by char, so parts can be joined later.
        return _encode(input_json.decode())[1:-1]
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the input is not UTF-8, as JSON must be: {error}") from None


def _joined(first: bytes, second: bytes) -> bytes:
    """Return the text of an object with the members of both."""
    if len(second) == len(b"{}"):
        return first
    return b"%b%b%b" % (first[:-1], b"," if len(first) > len(b"{}") else b"", second[1:])


def _of_source(source: InputSource) -> bytes:
    named: dict[str, Any] = {"ref": source.ref} if source.ref else {"from": source.origin}
    if source.parts:
        named = {"parts": source.parts}
    return _encode({**named, "type": source.type, "size": source.size})
