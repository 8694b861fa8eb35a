"""The options that a client may set for one job."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from headrace.jobs.job import State

MAX_WAIT_FOR_START_S: Final = 30 * 86400
METADATA_MAX_BYTES: Final = 4096

WebhookEvent = Literal["started", "succeeded", "failed", "cancelled", "expired"]
#: The events that are a job's end.
ENDS: Final = {
    state.status: state for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED)
}
#: None here would change the digests of requests that older versions have stored.
_NotGiven = msgspec.UnsetType

#: Seconds between two tries.
BackoffSeconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_WAIT_FOR_START_S)]


class JobOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of one job; None takes the default of the model or of the server.

    Attributes:
        priority: 0 (first) to 9 (batch priority), as in Celery on Redis.
        expires: seconds after the submit; a job that has not started by then ends as expired.
        countdown: seconds before it joins the queue.
        timeout: seconds that it may run after it was sent to the model process.
        result_ttl: seconds for which record and result are kept after the end.
        max_retries: how often a retryable error is tried again.
        retry_backoff: the longest wait before the first retry, in seconds; it doubles each time.
        retry_backoff_max: the longest wait before any retry, in seconds.
        metadata: data of the client, returned with the job; at most 4 KiB as JSON.
        webhook: the URL that is notified.
        webhook_events: the events that are sent; without it, any end.
    """

    priority: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    expires: _Seconds | None = None
    countdown: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_FOR_START_S)] | None = None
    timeout: _Seconds | None = None
    result_ttl: Annotated[int, msgspec.Meta(ge=1, le=MAX_WAIT_FOR_START_S)] | None = None
    max_retries: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    retry_backoff: BackoffSeconds | None = None
    retry_backoff_max: BackoffSeconds | None = None
    metadata: dict[str, Any] | None = None
    webhook: str | _NotGiven | None = msgspec.UNSET
    webhook_events: (
        Annotated[tuple[WebhookEvent, ...], msgspec.Meta(min_length=1)] | _NotGiven | None
    ) = msgspec.UNSET


DEFAULT_OPTIONS: Final = JobOptions()
