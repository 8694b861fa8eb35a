"""Decode and validate a submit request: its model, input, options and id."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from api.http.bodies import Payload, media_type, not_json
from api.http.messages import Request
from api.submission.options import check_options, validation_error
from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.model_catalog import Catalog, ModelConfig
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.jobs.ids import check_id, check_key, id_of_key, new_id
from headrace.jobs.message import InputSource
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.jobs.trace_context import Trace, read_trace
from headrace.payloads.input_ref import type_of
from headrace.queue.submission import hash_request

T = TypeVar("T")

#: msgspec gives each request its own Raw; this one marks an absent input.
_NO_INPUT: Final = msgspec.Raw(b"")


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a submit: the body of `POST /api/v1/jobs`.

    Attributes:
        input: the input; empty if the request has an `input_ref` instead.
        content_type: the content type of the file of `input_ref`; None derives it from the name.
    """

    model: str
    input: msgspec.Raw = _NO_INPUT
    input_ref: str | None = None
    content_type: str | None = None
    id: str | None = None
    version: str | None = None
    options: JobOptions = DEFAULT_OPTIONS


class BulkLineRequest(JobRequest, forbid_unknown_fields=True):
    """A line of a bulk request.

    Attributes:
        traceparent: this job's place in a trace, instead of the request's header.
    """

    traceparent: str | None = None


class RequestDecoder(NamedTuple, Generic[T]):
    """Decodes one kind of request.

    Attributes:
        members: the members that it may have.
    """

    decode: Callable[[bytes], T]
    members: frozenset[str]


SUBMIT: Final = RequestDecoder(
    msgspec.json.Decoder(JobRequest).decode, frozenset(JobRequest.__struct_fields__)
)
LINE: Final = RequestDecoder(
    msgspec.json.Decoder(BulkLineRequest).decode, frozenset(BulkLineRequest.__struct_fields__)
)


class JobIdentity(msgspec.Struct, frozen=True, gc=False):
    """The id of a job that is being submitted.

    Attributes:
        chosen: the client gave the id or an idempotency key, so that a repeat is possible.
    """

    job_id: str
    chosen: bool


class ValidatedRequest(msgspec.Struct, frozen=True, gc=False):
    """One submit request, validated.

    Attributes:
        version: the version that the client requires; None for any.
        payload: an input that is too long for the message; `input_json` is `null` then.
        source: the operator's file that the client names as input; `input_json` is `null` then.
        caller: the API key that makes the request.
        trace: the job's place in a trace.
    """

    model: ModelConfig
    input_json: bytes
    options: JobOptions
    identity: JobIdentity
    version: str | None = None
    payload: Payload | None = None
    source: InputSource | None = None
    caller: Caller = EVERYBODY
    trace: Trace | None = None

    @property
    def stored_separately(self) -> bool:
        """Whether the input is outside of the job's message."""
        return self.payload is not None or self.source is not None

    @property
    def request_hash(self) -> str:
        """The hash by which a repeat is recognised; "" if no repeat is possible."""
        if not self.identity.chosen:
            return ""
        hashed = self.input_json
        # No JSON begins with `p` or `r`, so the three kinds of input cannot be confused.
        if self.payload is not None:
            hashed = b"p%s\0%s" % (self.payload.kind.encode(), self.payload.body)
        elif self.source is not None:
            hashed = b"r%s\0%s" % (self.source.type.encode(), self.source.origin.encode())
        return hash_request(self.model.name, hashed, self.options, self.version)


def request_trace(request: Request) -> Trace | None:
    """Return the trace of a request; None if it has no valid one."""
    parent = request.header(b"traceparent")
    if not parent:
        return None
    state = request.header(b"tracestate")
    return read_trace(parent.decode("latin-1"), state.decode("latin-1"))


def with_trace(request: ValidatedRequest, trace: Trace | None) -> ValidatedRequest:
    """Return the request as a part of a trace."""
    return request if trace is None else msgspec.structs.replace(request, trace=trace)


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of a request; "" if it has none.

    Raises:
        InvalidId: the header is empty, as from an unset variable; a repeat would be a new job.
    """
    key = request.header(b"idempotency-key").decode("latin-1")
    if not key and request.has(b"idempotency-key"):
        check_key(key)
    return key


def identity_of(given_id: str | None, key: str, fresh_id: str = "", owner: str = "") -> JobIdentity:
    """Return the identity of a job from an id, an idempotency key, or neither.

    Args:
        given_id: the client's id, or None.
        key: the idempotency key, or "".
        fresh_id: the id to use if the client gave neither; "" makes a new one.
        owner: the API key, which has its own idempotency keys; "" for none.

    Raises:
        InvalidId: the id or the key is not valid.
        InvalidRequest: both are given.
    """
    if given_id is None:
        if key:
            return identity_from_key(check_key(key), owner)
        return JobIdentity(fresh_id or new_id(), chosen=False)
    if key:
        raise InvalidRequest(
            "the request has both an id and an Idempotency-Key",
            hint="Give one of them: either makes a repeat harmless.",
        )
    return JobIdentity(check_id(given_id), chosen=True)


def identity_from_key(key: str, owner: str = "") -> JobIdentity:
    """Return the identity that follows from a checked key, or from one derived from it."""
    return JobIdentity(id_of_key(key, owner), chosen=True)


def decode_job_request(body: bytes, decoder: RequestDecoder[T]) -> T:
    """Decode the JSON of a submit, or a line of a bulk request.

    Raises:
        InvalidRequest: the body is not JSON in UTF-8, or a member is not valid.
    """
    try:
        request = decoder.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:
        raise validation_error(error, "member", decoder.members) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return request


def requested_model(catalog: Catalog, request: JobRequest) -> ModelConfig:
    """Return the model that a request names.

    Raises:
        ModelNotFound: the model is unknown, or has another version.
    """
    model = catalog.get(request.model)
    if request.version is not None and request.version != model.version:
        raise ModelNotFound(
            f"model {model.name} has no version {request.version[:64]!r}",
            hint=f"Its version is {model.version}.",
        )
    return model


def request_from_json(
    request: JobRequest,
    model: ModelConfig,
    identity: JobIdentity,
    inline_limit_bytes: int = sys.maxsize,
    caller: Caller = EVERYBODY,
) -> ValidatedRequest:
    """Validate a request whose body is JSON.

    Raises:
        InvalidRequest: an option is not valid, or the request does not have exactly one input.
    """
    options = request.options
    if options is not DEFAULT_OPTIONS:
        check_options(options)
    text, payload, source = bytes(request.input), None, None
    if not text or request.input_ref is not None or request.content_type is not None:
        text, source = b"null", _named_input(request, text)
    elif len(text) > inline_limit_bytes:
        text, payload = b"null", Payload(text, "")
    return ValidatedRequest(
        model, text, options, identity, request.version, payload, source, caller
    )


def request_from_input(
    model: ModelConfig,
    found: bytes | Payload,
    options: JobOptions,
    identity: JobIdentity,
    caller: Caller = EVERYBODY,
) -> ValidatedRequest:
    """Return the request whose body is the input itself."""
    text, payload = (found, None) if isinstance(found, bytes) else (b"null", found)
    return ValidatedRequest(model, text, options, identity, payload=payload, caller=caller)


def _named_input(request: JobRequest, text: bytes) -> InputSource:
    reference, kind = request.input_ref, request.content_type
    if text and reference is not None:
        raise InvalidRequest(
            "the request has both an input and an input_ref", hint="Give one of them."
        )
    if text:
        raise InvalidRequest(
            "content_type is only for the file of an input_ref; this request has an input",
            hint='Leave it out, or give bytes as {"content_type": "…", "base64": "…"}.',
        )
    if reference is None:
        raise InvalidRequest("object missing required field input", hint="Give input or input_ref.")
    if kind is not None and not media_type(kind):
        raise InvalidRequest(
            "content_type is empty", hint="Leave it out to derive it from the name."
        )
    return InputSource(origin=reference, type=type_of(reference) if kind is None else kind)
