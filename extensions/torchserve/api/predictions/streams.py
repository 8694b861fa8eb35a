"""Predictions whose handler sends its reply in pieces: each piece is a chunk of the answer.

The answer begins with the first piece, as with TorchServe. The pieces are read from the piece log
of the job (headrace/queue/following/piece_log.py) when the client can take them. So this process
keeps none for a slow client: only its place in the log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
from typing import Final

import msgspec

from api.http.messages import (
    ClientGone,
    Header,
    Request,
    ResponseCutShort,
    StreamingReply,
    Write,
)
from api.routes.event_stream import put
from api.routes.jobs.events import LOOK_AGAIN_S
from api.routes.jobs.submission import AcceptedJob, submit_and_wait
from api.services import Services
from api.submission.job_request import ValidatedRequest
from extensions.torchserve.api.predictions.results import reply_head, shown
from extensions.torchserve.api.predictions.sequences import end_sequences
from extensions.torchserve.config.model_config import CONTINUOUS
from headrace.errors import BrokerError, HeadraceError
from headrace.jobs.job import Job, State
from headrace.jobs.values.encoding import BINARY_FORMS
from headrace.queue.following.piece_log import LogEvent, LogFollower, Pieces, Place
from headrace.response import NO_DETAILS, ResponseDetails, error_response

_DETAILS: Final = msgspec.json.Decoder(ResponseDetails)
#: nginx holds an answer back without it.
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")


async def submit_and_stream(
    services: Services, request: Request, validated: ValidatedRequest
) -> StreamingReply | AcceptedJob:
    """Submit a job, and wait for the first piece of its reply or for its end.

    Returns:
        The answer, which sends the pieces; the job, if it ends without pieces.

    Raises:
        ClientGone: the client hung up before the answer began.
        HeadraceError: as `submit_and_wait`.
    """
    stream = _ReplyStream(services, request, validated)
    head = None
    try:
        head = await stream.wait_for_head()
        if head is None:
            return await stream.end
    finally:
        if head is None:
            stream.close()
    status, content_type, headers = reply_head(validated.identity.job_id, head)
    return StreamingReply(status, stream.write_all, content_type, (*headers, _UNBUFFERED))


class _ReplyStream:
    """The pieces of one job's reply, for the client that has sent the request.

    `wait_for_head` comes first; then `write_all`, or `close` without an answer in pieces.
    """

    def __init__(self, services: Services, request: Request, validated: ValidatedRequest) -> None:
        self._services = services
        self._validated = validated
        job_id = validated.identity.job_id
        self._follower: LogFollower = services.piece_log.follow(
            validated.model.name, job_id, Place(), keeps=True
        )
        self._follower.__enter__()
        #: Submits the job, and is done when it has ended or the client has hung up.
        self.end = asyncio.create_task(
            submit_and_wait(services, validated, request.receive, math.inf)
        )
        self.end.add_done_callback(lambda _: self._follower.wake())
        #: Pieces that were read before the answer has begun.
        self._unwritten: list[msgspec.Raw] = []

    def close(self) -> None:
        self.end.cancel()
        self._follower.__exit__()

    async def wait_for_head(self) -> ResponseDetails | None:
        """Return the head of a reply, with its first piece; None if the job ends without one."""
        # Without the log, the client gets the result as a whole.
        with contextlib.suppress(BrokerError, ResponseCutShort):
            if events := await self._next_events():
                self._unwritten, head = _pieces(events)
                return _DETAILS.decode(head) if head else NO_DETAILS
        return None

    async def write_all(self, write: Write) -> None:
        """Write the pieces as they come, until the job has ended."""
        try:
            pieces = self._unwritten
            while True:
                for data in map(_bytes_of, pieces):
                    if data:
                        await put(write, data)
                events = await self._next_events()
                if not events:
                    break
                pieces, _ = _pieces(events)
            job = (await self.end).job
            if not _is_whole(job):
                raise ResponseCutShort
            await end_sequences(self._services, self._validated.model, job)
        except HeadraceError:
            raise ResponseCutShort from None
        except ClientGone:
            await cancel_abandoned(self._services, self._validated)
            raise
        finally:
            self.close()

    async def _next_events(self) -> list[LogEvent]:
        """Wait until the log has grown; return nothing when the job has ended and all is read."""
        while True:
            if not self.end.done():
                # There is no timer, as it would cost each prediction time. If the connection to
                # Redis is lost, the follower is woken too.
                await self._follower.published()
            ended = self.end.done()
            if ended and (self.end.exception() or not self._follower.may_have_pieces):
                return []
            try:
                events = await self._follower.read()
            except BrokerError:
                if ended:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)
                self._follower.wake()
                continue
            if events or ended:
                return events


def _pieces(events: list[LogEvent]) -> tuple[list[msgspec.Raw], bytes]:
    """Return the pieces that were read, and the head of the reply as JSON if they begin it.

    Raises:
        ResponseCutShort: the job has begun again after the client got pieces, or the log has lost
            pieces that the client has not.
    """
    pieces: list[msgspec.Raw] = []
    head = b""
    for event in events:
        if not isinstance(event, Pieces):
            raise ResponseCutShort
        head = head or event.head
        pieces += event.pieces
    return pieces, head


async def cancel_abandoned(services: Services, validated: ValidatedRequest) -> None:
    """Cancel a job whose client has hung up.

    A job that runs is cancelled only in a continuous batch; else it goes on, as with TorchServe. A
    job with an idempotency key goes on in any case, as the client may repeat the request.
    """
    identity = validated.identity
    if identity.chosen:
        return
    with contextlib.suppress(BrokerError):
        job = await services.queue.read(identity.job_id)
        continuous = validated.model.options.get(CONTINUOUS)
        if job is not None and (continuous or job.state in (State.QUEUED, State.SCHEDULED)):
            await services.queue.cancel_one(identity.job_id)


def _is_whole(job: Job) -> bool:
    """Return whether all pieces of a job that has ended are the whole reply.

    They are if the job succeeded. They are too if the handler itself set the status of an error.
    Then the job has failed, and the pieces are the body of that response.
    """
    if job.state is State.SUCCEEDED:
        return True
    response = error_response(job.error_json)
    return response is not None and response.body is not None


def _bytes_of(piece: msgspec.Raw) -> bytes:
    """Return the bytes of a piece that `handlers/results.py` has encoded."""
    text = bytes(piece)
    if text[:1] == b"{" and b'"base64"' in text:
        value = msgspec.json.decode(text)
        if value.keys() == BINARY_FORMS[0]:
            return base64.b64decode(value["base64"])
    return shown(text)
