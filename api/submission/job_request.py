"""What a client asks for, before it is a job: model, input, options, and under which id."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from api.http.bodies import Payload, media_type, not_json
from api.http.messages import Request
from api.submission.options import checked, reworded
from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.model_catalog import Catalog, ModelConfig
from headrace.errors import InvalidRequest, ModelNotFound
from headrace.jobs.ids import check_id, check_key, id_of_key
from headrace.jobs.job import DEFAULT_OPTIONS, JobOptions, new_id
from headrace.jobs.message import InputSource
from headrace.jobs.trace_context import Trace, read_trace
from headrace.payloads.input_ref import type_of
from headrace.queue.submission import hash_request

T = TypeVar("T")

#: msgspec gives each request its own Raw; an absent one is this.
_NO_INPUT: Final = msgspec.Raw(b"")


class JobRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a submit: the body of `POST /api/v1/jobs`.

    Attributes:
        input: the input; empty where `input_ref` stands in its place.
        content_type: what the file of `input_ref` is; None goes by its name.
    """

    model: str
    input: msgspec.Raw = _NO_INPUT
    input_ref: str | None = None
    content_type: str | None = None
    id: str | None = None
    version: str | None = None
    options: JobOptions = DEFAULT_OPTIONS


class LineRequest(JobRequest, forbid_unknown_fields=True):
    """A line of a bulk request.

    Attributes:
        traceparent: where in a trace this job is, in place of the request's header.
    """

    traceparent: str | None = None


class RequestDecoder(NamedTuple, Generic[T]):
    """How a kind of request is read, and which members it may have."""

    decode: Callable[[bytes], T]
    members: frozenset[str]


SUBMIT: Final = RequestDecoder(
    msgspec.json.Decoder(JobRequest).decode, frozenset(JobRequest.__struct_fields__)
)
LINE: Final = RequestDecoder(
    msgspec.json.Decoder(LineRequest).decode, frozenset(LineRequest.__struct_fields__)
)


class JobIdentity(msgspec.Struct, frozen=True, gc=False):
    """The id of a job to be.

    Attributes:
        chosen: the client gave it, or a key that it follows from, so that there can be a repeat.
    """

    job_id: str
    chosen: bool


class ValidatedRequest(msgspec.Struct, frozen=True, gc=False):
    """One job that is asked for, checked.

    Attributes:
        version: the version that the client insists on; None for any.
        payload: an input that is too long for its message; input_json is `null` then.
        source: the operator's own file that the client names as input; likewise.
        caller: on whose behalf.
        trace: where in a trace.
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
    def elsewhere(self) -> bool:
        """Whether the input does not go in the job's message."""
        return self.payload is not None or self.source is not None

    @property
    def request_hash(self) -> str:
        """By which a repeat is known; "" where there can be none."""
        if not self.identity.chosen:
            return ""
        said = self.input_json
        # No JSON begins so: neither can be taken for the other, nor for an input of that text.
        if self.payload is not None:
            said = b"p%s\0%s" % (self.payload.kind.encode(), self.payload.body)
        elif self.source is not None:
            said = b"r%s\0%s" % (self.source.type.encode(), self.source.origin.encode())
        return hash_request(self.model.name, said, self.options, self.version)


def trace_of(request: Request) -> Trace | None:
    """The trace of a request; one that is not as it should be is none."""
    parent = request.header(b"traceparent")
    if not parent:
        return None
    state = request.header(b"tracestate")
    return read_trace(parent.decode("latin-1"), state.decode("latin-1"))


def in_trace(asked: ValidatedRequest, trace: Trace | None) -> ValidatedRequest:
    """The same as a part of this trace."""
    return asked if trace is None else msgspec.structs.replace(asked, trace=trace)


def identity_of(given_id: str | None, key: str, fresh_id: str = "", owner: str = "") -> JobIdentity:
    """The id by what the client gave: an id, an idempotency key, or neither.

    Args:
        given_id: the id, or None.
        key: the idempotency key, or "".
        fresh_id: what it is called where the client gave neither; "" to make one up.
        owner: the API key, whose idempotency keys are its own; "" for none.

    Raises:
        InvalidId: a job cannot have it.
        InvalidRequest: both are given.
    """
    if given_id is None:
        if key:
            return identity_under(check_key(key), owner)
        return JobIdentity(fresh_id or new_id(), chosen=False)
    if key:
        raise InvalidRequest(
            "the request has both an id and an Idempotency-Key",
            hint="Give one of them: either makes a repeat harmless.",
        )
    return JobIdentity(check_id(given_id), chosen=True)


def identity_under(key: str, owner: str = "") -> JobIdentity:
    """The id by a key that was made here, out of one that was checked; it may be longer."""
    return JobIdentity(id_of_key(key, owner), chosen=True)


def read_job_request(body: bytes, reader: RequestDecoder[T]) -> T:
    """Read the JSON of a submit, or a line of several.

    Raises:
        InvalidRequest: it is not JSON in UTF-8, or a member does not fit.
    """
    try:
        asked = reader.decode(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError as error:
        raise reworded(error, "member", reader.members) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return asked


def model_for(catalog: Catalog, request: JobRequest) -> ModelConfig:
    """The model that a request names.

    Raises:
        ModelNotFound: there is none of that name, or not in the version that is asked for.
    """
    model = catalog.get(request.model)
    if request.version is not None and request.version != model.version:
        raise ModelNotFound(
            f"model {model.name} has no version {request.version[:64]!r}",
            hint=f"Its version is {model.version}.",
        )
    return model


def asked_by(
    request: JobRequest,
    model: ModelConfig,
    identity: JobIdentity,
    inline_limit_bytes: int = sys.maxsize,
    caller: Caller = EVERYBODY,
) -> ValidatedRequest:
    """What a request asks of its model.

    Raises:
        InvalidRequest: an option does not fit, or there is not one input.
    """
    options = request.options
    if options is not DEFAULT_OPTIONS:
        checked(options)
    text = bytes(request.input)
    if not text or request.input_ref is not None or request.content_type is not None:
        source = _named_input(request, text)
        return ValidatedRequest(
            model, b"null", options, identity, request.version, source=source, caller=caller
        )
    if len(text) > inline_limit_bytes:
        payload = Payload(text, "")
        return ValidatedRequest(
            model, b"null", options, identity, request.version, payload, caller=caller
        )
    return ValidatedRequest(model, text, options, identity, request.version, caller=caller)


def asked_with(
    model: ModelConfig,
    found: bytes | Payload,
    options: JobOptions,
    identity: JobIdentity,
    caller: Caller = EVERYBODY,
) -> ValidatedRequest:
    """What is asked where the body is the input."""
    if isinstance(found, bytes):
        return ValidatedRequest(model, found, options, identity, caller=caller)
    return ValidatedRequest(model, b"null", options, identity, payload=found, caller=caller)


def _named_input(request: JobRequest, text: bytes) -> InputSource:
    reference, kind = request.input_ref, request.content_type
    if text and reference is not None:
        raise InvalidRequest(
            "the request has both an input and an input_ref", hint="Give one of them."
        )
    if text:
        raise InvalidRequest(
            "content_type says what the file of an input_ref is; this request has an input",
            hint='Leave it out, or give bytes as {"content_type": "…", "base64": "…"}.',
        )
    if reference is None:
        raise InvalidRequest(
            "object missing required field input", hint="Give input, or input_ref in its place."
        )
    if kind is not None and not media_type(kind):
        raise InvalidRequest("content_type is empty", hint="Leave it out to go by the name.")
    return InputSource(origin=reference, type=type_of(reference) if kind is None else kind)
