"""What the access log and the spans need of a request."""

from __future__ import annotations

import re
import time
from typing import Final

from api.http.messages import Message, Request, Scope, Send
from headrace.schema.serialization import JOBS_PATH

REQUEST_ID: Final = b"x-request-id"
#: A request id of any other form is ignored.
_ID: Final = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
#: The status in the log if the client closed the connection before the answer.
CLIENT_GONE: Final = 499
_JOBS_PATH: Final = JOBS_PATH.encode()
_JOB_ROUTE: Final = "/api/v1/jobs/{job_id}"


class RequestTrace:
    """What the access log and the spans need of one request.

    Attributes:
        id: the request id; empty for none.
        template: the template of its path; empty for an unknown path.
        request: the request as its operation receives it; None until it is routed.
        job: the job that the request creates, or that its path names.
        status: the answer's status; CLIENT_GONE until the answer begins.
        size: the bytes of the answer's body so far.
        began: `time.perf_counter()` at its beginning.
    """

    __slots__ = ("_send", "began", "id", "job", "request", "scope", "size", "status", "template")

    def __init__(self, scope: Scope, send: Send, request_id: bytes) -> None:
        self.scope = scope
        self.id = request_id
        self.template = ""
        self.request: Request | None = None
        self.job = ""
        self.status = CLIENT_GONE
        self.size = 0
        self.began = time.perf_counter()
        self._send = send

    def routed(self, template: str, parameter: str, request: Request) -> None:
        """Add the template of the path and the value of its first parameter."""
        self.template, self.request = template, request
        if template.startswith(_JOB_ROUTE):
            self.job = parameter

    async def send(self, message: Message) -> None:
        """Send an ASGI message, with the request id among the answer's headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.get("headers", ())
            for name, value in headers:
                if name == b"location" and value.startswith(_JOBS_PATH):
                    self.job = value[len(_JOBS_PATH) :].decode("latin-1")
            if self.id:
                message = {**message, "headers": [*headers, (REQUEST_ID, self.id)]}
        elif message["type"] == "http.response.body":
            self.size += len(message.get("body", b""))
        await self._send(message)


def incoming_request_id(scope: Scope) -> bytes:
    """Return the id that a request brings; empty if it has none or one of another form."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID:
            return value if _ID.fullmatch(value) else b""
    return b""
