"""What a client may give with an input: the options of its job, and what reaches the handler."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headrace.errors import InvalidRequest
from headrace.jobs.job import State

MAX_WAIT_FOR_START_S: Final = 30 * 86400
METADATA_MAX_BYTES: Final = 4096
WEBHOOK_URL_MAX_CHARS: Final = 2048
#: For the API's description; `headrace.webhooks.endpoint` checks more.
WEBHOOK_URL: Final = r"^https?://[A-Za-z0-9._~:/?\[\]!$&'()*+,;=%-]+$"

WebhookEvent = Literal["started", "succeeded", "failed", "cancelled", "expired"]
#: The events that are a job's end.
ENDS: Final = {
    state.status: state for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED)
}

#: Seconds between two tries.
BackoffSeconds = Annotated[float, Meta(ge=0, le=86_400)]
_Seconds = Annotated[float, Meta(gt=0, le=MAX_WAIT_FOR_START_S)]
_WebhookUrl = Annotated[
    str, Meta(extra_json_schema={"pattern": WEBHOOK_URL, "maxLength": WEBHOOK_URL_MAX_CHARS})
]


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of one job; null takes the default of the model or of the server."""

    priority: Annotated[int, Meta(ge=0, le=9, description="0 (first) to 9 (offline work).")] = 0
    expires: Annotated[
        _Seconds | None,
        Meta(description="Seconds after the submit within which it must have started."),
    ] = None
    countdown: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_WAIT_FOR_START_S)] | None,
        Meta(description="Seconds before it joins the queue."),
    ] = None
    timeout: Annotated[_Seconds | None, Meta(description="Seconds for which it may run.")] = None
    result_ttl: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_WAIT_FOR_START_S)] | None,
        Meta(description="Seconds for which the job and its result are kept after its end."),
    ] = None
    max_retries: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        Meta(description="Retries after a retryable error."),
    ] = None
    retry_backoff: Annotated[
        BackoffSeconds | None,
        Meta(description="Seconds: the longest wait before the first retry; it doubles each time."),
    ] = None
    retry_backoff_max: Annotated[
        BackoffSeconds | None,
        Meta(description="Seconds: the longest wait before any retry."),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None,
        Meta(description="The client's own data, returned with the job; at most 4 KiB as JSON."),
    ] = None
    webhook: Annotated[
        _WebhookUrl | None,
        Meta(
            description="The URL that receives events of the job, if this server sends webhooks; "
            "an address in a private network is refused unless `webhook_allow_networks` has it."
        ),
    ] = None
    webhook_events: Annotated[
        Annotated[tuple[WebhookEvent, ...], Meta(min_length=1)] | None,
        Meta(description="The events to send; by default every event of the job's end."),
    ] = None


DEFAULT_OPTIONS: Final = JobOptions()


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class InputDetails(msgspec.Struct, frozen=True, gc=False):
    """What comes with the input of one job, each as the text of a JSON object; b"" for none.

    Attributes:
        headers: the headers of the request that the model has chosen.
        metadata: the client's own data.
        nested: bytes inside the input's JSON are decoded for any handler: the input was a form.
        typed: it may have values of `headrace.jobs.values.plain_values`: a Celery client sent it.
    """

    parameters: bytes = b""
    headers: bytes = b""
    metadata: bytes = b""
    nested: bool = False
    typed: bool = False

    def text(self) -> bytes:
        """Return all of it as the text of a JSON object, for a model process."""
        named = (
            (b"parameters", self.parameters),
            (b"headers", self.headers),
            (b"metadata", self.metadata),
            (b"nested", b"true" if self.nested else b""),
            (b"typed", b"true" if self.typed else b""),
        )
        return b"{%b}" % b",".join(b'"%b":%b' % pair for pair in named if pair[1])


class GivenDetails(msgspec.Struct):
    """The same as values."""

    parameters: dict[str, Any] = {}
    headers: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    nested: bool = False
    typed: bool = False


_GIVEN: Final = msgspec.json.Decoder(GivenDetails)
NO_DETAILS: Final = InputDetails()


def read_details(text: bytes) -> GivenDetails:
    """Read a text of `InputDetails.text`; raise InvalidRequest for any other text of a client."""
    try:
        return _GIVEN.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"what came with the input cannot be read: {error}") from None


def read_object(text: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object; {} for b"" and null. Raise InvalidRequest, with `what`, for others."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any] | None) or {} if text else {}
    except (ValueError, RecursionError) as error:
        reason = str(error)
        raise InvalidRequest(f"{what}: {reason[:1].lower()}{reason[1:]}") from None


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Check the size of a job's metadata; raise InvalidRequest if they are too large."""
    size = 0 if metadata is None else len(msgspec.json.encode(metadata))
    if size > METADATA_MAX_BYTES:
        raise InvalidRequest(
            f"metadata has {size} bytes as JSON, more than {METADATA_MAX_BYTES}",
            hint="Keep large data elsewhere and its key in metadata.",
        )
