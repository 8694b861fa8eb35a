"""Decode and validate a submit request: its model, input, options and id.

`InputChecks` checks the input against the `inputs` of its model, before it is queued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from api.components.model_status import ModelStatuses
from api.http.bodies import Payload, media_type
from api.http.messages import Request
from api.submission.decoding import OPTION_NAMES, JsonDecoder, invalid_member
from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.inputs.input_schema import InputSection
from headrace.config.inputs.parameters import check_parameters
from headrace.config.model.catalog import Catalog, ModelConfig
from headrace.config.suggestions import unknown_version
from headrace.errors import InvalidInput, InvalidRequest
from headrace.jobs.ids import check_free_id, check_id, check_key, id_of_key, new_id
from headrace.jobs.message import InputSource
from headrace.jobs.options import DEFAULT_OPTIONS, InputDetails, JobOptions, check_metadata
from headrace.jobs.trace_context import Trace, read_trace
from headrace.jobs.values.value_check import ValueCheck, summary
from headrace.payloads.input_ref import type_of
from headrace.queue.submission import hash_request
from headrace.redis.scripts import Arg
from headrace.schema.lines import BulkLineRequest, JobRequest

#: Returns the value of a header by its name in lower case; b"" for none.
HeaderOf = Callable[[bytes], bytes]
#: The most bytes of a header that reaches a handler.
HEADER_MAX_BYTES: Final = 1024


SUBMIT: Final = JsonDecoder(JobRequest)
LINE: Final = JsonDecoder(BulkLineRequest)


def options_from_query(given: Mapping[str, str]) -> JobOptions:
    """Return the options among a query's parameters; raise InvalidRequest if one is not valid."""
    if not given:
        return DEFAULT_OPTIONS
    values: dict[str, Any] = {name: text for name, text in given.items() if name in OPTION_NAMES}
    if not values:
        return DEFAULT_OPTIONS
    for name, text in values.items():
        # msgspec would take it for an absent option; it is rather an unset variable.
        if text.lower() == "null":
            raise InvalidRequest(
                f"query parameter {name}: null is not a value", hint="Leave it out for the default."
            )
    if "metadata" in values:
        try:
            values["metadata"] = msgspec.json.decode(values["metadata"])
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"the query parameter metadata is not JSON: {error}",
                hint='Give a JSON object, percent-encoded, such as {"batch":7}.',
            ) from None
    if "webhook_events" in values:
        values["webhook_events"] = values["webhook_events"].split(",")
    try:
        options = msgspec.convert(values, JobOptions, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_member(error, "query parameter", JobOptions) from None
    return check_options(options)


def check_options(options: JobOptions) -> JobOptions:
    """Return the options; raise InvalidRequest if the metadata is too large."""
    check_metadata(options.metadata)
    return options


class JobIdentity(msgspec.Struct, frozen=True, gc=False):
    """The id of a new job; `chosen` by the client, or by its key, so that a repeat is possible."""

    job_id: str
    chosen: bool


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class ValidatedRequest(msgspec.Struct, frozen=True, gc=False):
    """One submit request, validated.

    Attributes:
        version: the version that the client requires; None for any.
        payload: an input that is too long for the message; `input_json` is `null` then.
        source: the operator's file that the client names as input; `input_json` is `null` then.
        details: what comes with the input, without the metadata, which is an option.
        shadow: the shadow version that gets a copy of the job; None for none.
        fields: more names and values of the job's record.
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
    details: InputDetails | None = None
    shadow: ModelConfig | None = None
    fields: tuple[Arg, ...] = ()

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
        details = self.details
        if details is not None:
            # A header may differ in each try of a client.
            details = msgspec.structs.replace(details, headers=b"")
        return hash_request(self.model.name, hashed, self.options, self.version, details)


def request_trace(request: Request) -> Trace | None:
    """Return the trace of a request; None without a valid trace."""
    parent = request.header(b"traceparent")
    if not parent:
        return None
    state = request.header(b"tracestate")
    return read_trace(parent.decode("latin-1"), state.decode("latin-1"))


def with_trace(request: ValidatedRequest, trace: Trace | None) -> ValidatedRequest:
    """Return the request as a part of a trace."""
    return request if trace is None else msgspec.structs.replace(request, trace=trace)


def trace_id_of(request: ValidatedRequest) -> str:
    """Return the id of the trace of a request; "" if it has none."""
    return "" if request.trace is None else request.trace.trace_id


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of a request; "" if it has none.

    An empty header, as from an unset variable, raises InvalidId: a repeat would be a new job.
    """
    key = request.header(b"idempotency-key").decode("latin-1")
    if not key and request.has(b"idempotency-key"):
        check_key(key)
    return key


def identity_of(given_id: str | None, key: str, owner: str) -> JobIdentity:
    """Return the identity of a job from an id, an idempotency key, or neither.

    Args:
        owner: the API key, which has its own idempotency keys; "" for none.

    Raises:
        InvalidId: the id or the key is not valid.
        InvalidRequest: both are given.
    """
    if given_id is None:
        if key:
            return identity_from_key(check_key(key), owner)
        return JobIdentity(new_id(), chosen=False)
    if key:
        raise InvalidRequest(
            "the request has both an id and an Idempotency-Key",
            hint="Give one of them: either makes a repeat harmless.",
        )
    return JobIdentity(check_free_id(given_id) if owner else check_id(given_id), chosen=True)


def identity_from_key(key: str, owner: str) -> JobIdentity:
    """Return the identity that follows from a checked key, or from a key derived from it."""
    return JobIdentity(id_of_key(key, owner), chosen=True)


def requested_model(catalog: Catalog, statuses: ModelStatuses, request: JobRequest) -> ModelConfig:
    """Return a requested model, with the queue of its version if any; or raise ModelNotFound."""
    model, version = catalog.get(request.model), request.version
    return model if version is None else model_of_version(model, version, statuses)


def model_of_version(model: ModelConfig, version: str, statuses: ModelStatuses) -> ModelConfig:
    """Return the model with the queue of a version; raise ModelNotFound for an unknown one."""
    known = statuses.versions(model)
    if version not in known:
        raise unknown_version(model.name, version, known)
    return statuses.for_version(model, version)


def route(
    model: ModelConfig,
    statuses: ModelStatuses,
    job_id: str,
    metadata: Mapping[str, Any] | None,
    header: HeaderOf,
) -> tuple[ModelConfig, ModelConfig | None]:
    """Return what the traffic chooses for a job without a version, and what gets a copy."""
    traffic = model.traffic
    if traffic is None:
        return model, None
    version = traffic.choose(model.name, traffic.key(job_id, metadata, header))
    chosen = statuses.for_version(model, version) if version else model
    shadow = traffic.shadow
    if shadow is None or shadow == chosen.version or not traffic.copies(model.name, job_id):
        return chosen, None
    return chosen, statuses.for_version(model, shadow)


def request_from_json(
    request: JobRequest,
    model: ModelConfig,
    identity: JobIdentity,
    inline_limit_bytes: int,
    caller: Caller,
    header: HeaderOf,
) -> ValidatedRequest:
    """Validate a request whose body is JSON; an input above the limit becomes a payload.

    Raises:
        InvalidRequest: an option or a parameter is not valid, or the request does not have exactly
            one input.
    """
    options = request.options
    if options is not DEFAULT_OPTIONS:
        check_options(options)
    text, payload, source = bytes(request.input or b""), None, None
    if not text or request.input_ref is not None or request.content_type is not None:
        text, source = b"null", _named_input(request, text)
    elif len(text) > inline_limit_bytes:
        text, payload = b"null", Payload(text, "")
    validated = ValidatedRequest(
        model, text, options, identity, request.version, payload, source, caller
    )
    if request.parameters or model.parameters or model.headers:
        return with_details(validated, request.parameters, header)
    return validated


def request_from_input(
    model: ModelConfig,
    given: bytes | Payload,
    options: JobOptions,
    identity: JobIdentity,
    caller: Caller = EVERYBODY,
    version: str | None = None,
) -> ValidatedRequest:
    """Return the request whose body is the input itself; `version` is from its path."""
    text, payload = (given, None) if isinstance(given, bytes) else (b"null", given)
    return ValidatedRequest(model, text, options, identity, version, payload, caller=caller)


def with_details(
    request: ValidatedRequest,
    given: Mapping[str, Any] | None,
    header: HeaderOf,
    *,
    nested: bool = False,
) -> ValidatedRequest:
    """Return the request with its parameters and the headers that its model has chosen.

    `nested` means that its input is a form of several parts. It raises InvalidRequest for a
    parameter or a header that is not valid.
    """
    model = request.model
    # Those of a version that the models file does not have are checked by its worker.
    parameters = dict(given or {})
    if model.declared:
        parameters = check_parameters(model.parameters, parameters, model.name)
    headers = _chosen_headers(model.headers, header)
    if not (parameters or headers or nested):
        return request
    details = InputDetails(
        parameters=msgspec.json.encode(parameters, order="sorted") if parameters else b"",
        headers=msgspec.json.encode(headers) if headers else b"",
        nested=nested,
    )
    return msgspec.structs.replace(request, details=details)


def _chosen_headers(names: Sequence[str], header: HeaderOf) -> dict[str, str]:
    chosen = {}
    for name in names:
        value = header(name.encode())
        if len(value) > HEADER_MAX_BYTES:
            raise InvalidRequest(
                f"the header {name} has {len(value)} bytes, more than {HEADER_MAX_BYTES}",
                hint="Send it as a parameter, or in the input.",
            )
        if value:
            chosen[name] = header_text(value)
    return chosen


def header_text(value: bytes) -> str:
    """Return the text of a header, in UTF-8 or Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


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


class InputChecks:
    """The checks of one process; each schema is compiled once, those of `models` now.

    It raises ConfigError if the library that checks schemas is not installed.
    """

    def __init__(self, models: Iterable[ModelConfig] = ()) -> None:
        self._checks: dict[tuple[str, str], tuple[InputSection, ValueCheck]] = {}
        for model in models:
            if model.inputs is not None:
                self._check_of(model, model.inputs)

    def check(self, request: ValidatedRequest) -> None:
        """Check the input of a request, but only the type of an `input_ref`.

        It raises InvalidInput if it does not fit, and InvalidRequest if it cannot be decoded.
        """
        if request.model.inputs is None:
            return
        check = self._check_of(request.model, request.model.inputs)
        payload, source = request.payload, request.source
        if source is not None:
            mistakes = check.of_reference(source.type)
        elif payload is not None:
            mistakes = check.of_payload(payload.body, payload.kind)
        else:
            mistakes = check.of_input(request.input_json)
        if mistakes:
            name = request.model.name
            raise InvalidInput(
                f"the input does not fit model {name}: {summary(mistakes)}",
                hint=f"GET /api/v1/models/{name} shows its inputs.",
                errors=mistakes,
            )

    def _check_of(self, model: ModelConfig, inputs: InputSection) -> ValueCheck:
        key = (model.name, model.version)
        known = self._checks.get(key)
        # The models may change while the server runs.
        if known is None or known[0] is not inputs:
            known = self._checks[key] = (inputs, inputs.value_check())
        return known[1]
