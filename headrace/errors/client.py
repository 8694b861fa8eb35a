"""What `headrace.client` raises itself."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class ClientError(HeadraceError):
    """What the client itself raises; no server answers with it."""


class ServerUnreachable(ClientError):
    """Nothing answers at the address, or it stopped answering for longer than was to be borne."""

    code = "server-unreachable"
    retryable = True
    title = "Server unreachable"


class UnexpectedAnswer(ClientError):
    """What answers at the address does not speak as Headrace does."""

    code = "unexpected-answer"
    title = "Unexpected answer"


class WaitTimeout(ClientError, TimeoutError):
    """The job had not ended when the wait was over; it goes on, and can be waited for again.

    Attributes:
        job_id: the job.
    """

    code = "wait-timeout"
    title = "Wait timed out"
    job_id: str = ""
