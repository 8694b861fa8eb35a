"""Predictions whose handler sends pieces of its reply: the answer begins with the first of them.

Each piece is a chunk of the answer, as TorchServe sends it. The pieces come from the log of the job
(headrace/queue/piece_log.py), so a slow client costs this process one number.
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
from api.routes.jobs.events import LOOK_AGAIN_S, put
from api.services import Services
from api.submission.job_request import ValidatedRequest
from api.submission.submit import AcceptedJob, submit_and_wait
from api.torchserve.results import reply_head, shown
from headrace.errors import BrokerError, HeadraceError
from headrace.jobs.encoding import BINARY_FORMS
from headrace.jobs.job import Job, State
from headrace.jobs.response import NO_DETAILS, ResponseDetails, error_response
from headrace.queue.piece_log import LogEntry, LogFollower
from headrace.torchserve.model_config import CONTINUOUS

_DETAILS: Final = msgspec.json.Decoder(ResponseDetails)
#: nginx holds an answer back without it.
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")


async def wait_for_pieces(
    services: Services, request: Request, validated: ValidatedRequest
) -> StreamingReply | AcceptedJob:
    """Submit a job and wait for its first piece, or for its end.

    Returns:
        The answer, if the handler sends pieces; else the job.

    Raises:
        ClientGone: the client hung up before the answer began.
        HeadraceError: as `submit_and_wait`.
    """
    prediction = _Prediction(services, request, validated)
    head = None
    try:
        head = await prediction.begin()
        if head is None:
            return await prediction.accepted()
    finally:
        if head is None:
            prediction.close()
    status, content_type, headers = reply_head(validated.identity.job_id, head)
    return StreamingReply(status, prediction.run, content_type, (*headers, _UNBUFFERED))


class _Prediction:
    """A job, and the client that waits for it. `close` follows in any case, or `run`."""

    __slots__ = (
        "_after", "_begun", "_ending", "_first", "_follower", "_services", "_validated",
    )  # fmt: skip

    def __init__(self, services: Services, request: Request, validated: ValidatedRequest) -> None:
        self._services = services
        self._validated = validated
        job_id = validated.identity.job_id
        self._follower: LogFollower = services.piece_log.follow(
            validated.model.name, job_id, keeps=True
        )
        self._follower.__enter__()
        self._ending = asyncio.create_task(
            submit_and_wait(services, validated, request.receive, math.inf)
        )
        self._ending.add_done_callback(self._wake)
        # The index of the last piece that was read, and those that were not written yet.
        self._after = 0
        self._first: list[msgspec.Raw] = []
        self._begun = False

    def _wake(self, _: object) -> None:
        self._follower.wake()

    def close(self) -> None:
        """Follow the job no longer."""
        self._ending.cancel()
        self._follower.__exit__()

    async def begin(self) -> ResponseDetails | None:
        """Wait for the first piece; return the head of the answer, None if the job has ended."""
        # The result is whole, so a log that cannot be read costs no more than the pieces.
        with contextlib.suppress(BrokerError, ResponseCutShort):
            while entries := await self._entries():
                self._first, head = self._pieces_of(entries)
                if self._first:
                    self._begun = True
                    return _DETAILS.decode(head) if head else NO_DETAILS
        return None

    async def accepted(self) -> AcceptedJob:
        """Return the job once it has ended.

        Raises:
            ClientGone: the client hung up.
            HeadraceError: as `submit_and_wait`.
        """
        return await self._ending

    async def run(self, write: Write) -> None:
        """Write the pieces, until the job has ended.

        Raises:
            ClientGone: the client hung up.
            ResponseCutShort: the rest of the reply is missing.
        """
        try:
            pieces = self._first
            while True:
                for data in map(_bytes_of, pieces):
                    if data:
                        await put(write, data)
                entries = await self._entries()
                if not entries:
                    break
                pieces, _ = self._pieces_of(entries)
            if not _is_whole((await self.accepted()).job):
                raise ResponseCutShort
        except HeadraceError:
            raise ResponseCutShort from None
        except ClientGone:
            await cancel_abandoned(self._services, self._validated)
            raise
        finally:
            self.close()

    async def _entries(self) -> list[LogEntry]:
        """Return what is new in the log; nothing once the job has ended.

        Raises:
            BrokerError: the job has ended, and Redis does not answer.
        """
        while True:
            if not self._ending.done():
                # Without a timer, which each prediction would pay for: a lost connection wakes too.
                await self._follower.published()
            over = self._ending.done()
            if over and (self._ending.exception() or not self._follower.may_have_pieces):
                return []
            try:
                entries = await self._follower.read(self._after)
            except BrokerError:
                if over:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)
                self._follower.wake()
                continue
            if entries or over:
                return entries

    def _pieces_of(self, entries: list[LogEntry]) -> tuple[list[msgspec.Raw], bytes]:
        """Return the pieces of entries, and the head of the reply if it begins with them.

        Raises:
            ResponseCutShort: the client has pieces that count no more, or some are missing.
        """
        pieces: list[msgspec.Raw] = []
        head = b""
        for entry in entries:
            if not entry.pieces:
                # The job runs again, from its beginning.
                if self._begun:
                    raise ResponseCutShort
                pieces, head = [], b""
            elif entry.first > self._after + 1:
                raise ResponseCutShort
            head = head or entry.head
            pieces += entry.pieces[self._after - entry.first + 1 :]
            self._after = entry.last
        return pieces, head


async def cancel_abandoned(services: Services, validated: ValidatedRequest) -> None:
    """Cancel a job whose client has hung up.

    As with TorchServe, one that runs goes on, unless it can leave its batch.
    """
    identity = validated.identity
    if identity.chosen:
        return
    with contextlib.suppress(BrokerError):
        job = await services.queue.read(identity.job_id)
        leaves = validated.model.options.get(CONTINUOUS)
        if job is not None and (leaves or job.state in (State.QUEUED, State.SCHEDULED)):
            await services.queue.cancel_one(identity.job_id)


def _is_whole(job: Job) -> bool:
    """Return whether the pieces of a job that has ended are its reply.

    A handler may set the status of an error with its last piece. The status is sent by then.
    """
    if job.state is State.SUCCEEDED:
        return True
    response = error_response(job.error_json)
    return response is not None and response.body is not None


def _bytes_of(piece: msgspec.Raw) -> bytes:
    """Return the bytes of a piece, as `handlers.torchserve.results.piece_of` has encoded it."""
    text = bytes(piece)
    if text[:1] == b"{" and b'"base64"' in text:
        value = msgspec.json.decode(text)
        if value.keys() == BINARY_FORMS[0]:
            return base64.b64decode(value["base64"])
    return shown(text)
