"""The options that a client may set for one job."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

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
