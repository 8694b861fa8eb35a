"""Errors that `headrace.client` raises itself."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class ClientError(HeadraceError):
    """Raised by the client itself, never sent by a server."""


class ServerUnreachable(ClientError):
    """No server answers at the address, or it did not answer for longer than `retry_s`."""

    code = "server-unreachable"
    retryable = True
    title = "Server unreachable"


class UnexpectedAnswer(ClientError):
    """The server at the address does not answer as Headrace does."""

    code = "unexpected-answer"
    title = "Unexpected answer"


class WaitTimeout(ClientError, TimeoutError):
    """The job did not end within the wait. It continues, and a new wait is possible.

    Attributes:
        job_id: the job.
    """

    code = "wait-timeout"
    title = "Wait timed out"
    job_id: str = ""
