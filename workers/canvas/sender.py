"""Sends what follows a job, with Celery's own machinery: callbacks, chains, chords.

It does what `celery.app.trace` and `Backend.mark_as_failure` do with a task's request. What they
leave to luck is made sure of: whatever is sent again after a crash has the same ids, and a chord
whose last member was seen by a process that died is looked at until its body was sent. A sender
lives in one thread, as Celery's apps and results like it.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from celery import group as celery_group
from celery.app.task import Context
from kombu.exceptions import OperationalError
from kombu.utils import json as kombu_json
from redis.exceptions import RedisError, ResponseError

from headrace.jobs.encoding import strict_json
from headrace.jobs.ids import id_of_sequel
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as job_scripts
from workers.canvas.celery_client import canvas_app, close_app, signature_of
from workers.jobs.canvas import Canvas, Signature, chord_body

logger = logging.getLogger(__name__)

SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
#: What Celery's Redis backend leaves under a chord's claim once its body was sent.
_DONE: Final = b"done"
#: What may be otherwise in a moment: Redis is away, or refuses a write.
TRY_AGAIN: Final = (OperationalError, RedisError, OSError)


def never_passes(error: BaseException) -> bool:
    """Whether Redis will say no each time: a key that is to be written is of another type."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ResponseError) and "WRONGTYPE" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class SendVerdict:
    """What jobs/canvas_begin.lua answers."""

    FENCED: Final = 0
    TELL: Final = 1
    CANCELLED: Final = 3


class ChordBusy(Exception):
    """Another process has begun to send a chord's body; it may have died over it."""


class CanvasOutcome(NamedTuple):
    """How a job has ended, in Celery's words.

    Attributes:
        state: SUCCESS, FAILURE or REVOKED.
        value: the result as `.get()` gives it, or the exception as Celery writes it in JSON.
        traceback: of the handler, where it raised.
        meta: the Celery result as it is to be stored; b"" where none is (ignore_result).
    """

    state: str
    value: Any
    traceback: str | None
    meta: bytes


class Malformed(Exception):
    """What follows a job can never be sent."""


@dataclass(slots=True)
class SendProgress:
    """How far the telling of one job has come, so that another try does not say all again.

    Attributes:
        children: what was sent, as Celery's results list it; None while it was not.
        told: what was told: the chord, the chain, the errbacks.
        tries: how often it was tried in vain.
    """

    children: list[Any] | None = None
    told: set[str] = field(default_factory=set)
    tries: int = 0


class CanvasSender:
    """One connection to the broker and to Celery's results.

    Args:
        redis_url: the deployment's Redis.
        result_ttl_s: how long results are kept that are written here.
    """

    def __init__(self, redis_url: str, result_ttl_s: int) -> None:
        self._ttl_s = result_ttl_s
        self._redis: Any = connect(redis_url)
        self._app: Any = canvas_app(redis_url, result_ttl_s)
        self._backend: Any = self._app.backend

    def close(self) -> None:
        """Drop the connections."""
        close_app(self._app)
        self._redis.close()

    def verdict(self, job_id: str, token: str) -> int:
        """What jobs/canvas_begin.lua says of a leased job."""
        return int(call_script(self._redis, job_scripts.canvas_begin(job_id, token)))

    def done(self, queue: str, name: bytes) -> None:
        """The end that a script has left under this name was told."""
        with self._redis.pipeline() as pipe:
            pipe.zrem(keys.orphaned(queue), name)
            pipe.hdel(keys.orphaned_ends(queue), name)
            pipe.execute()

    def send(self, canvas: Canvas, outcome: CanvasOutcome, progress: SendProgress) -> None:
        """Send what a success sets off: the callbacks, then the next in the chain.

        Raises:
            Malformed: it cannot be sent.
            TRY_AGAIN: it cannot be sent now.
        """
        if progress.children is not None or outcome.state != SUCCESS:
            return
        family = {"parent_id": canvas.id, "root_id": canvas.root_id}
        try:
            sent = [
                callback.apply_async((outcome.value,), **family)
                for callback in self._callbacks(canvas)
            ]
            if canvas.chain:
                *rest, following = canvas.chain
                signature = self._signature(following)
                rest = copy.deepcopy(rest)
                sent.append(signature.apply_async((outcome.value,), chain=rest, **family))
            progress.children = [result.as_tuple() for result in sent if result is not None]
        except Exception as error:
            if isinstance(error, TRY_AGAIN) and not never_passes(error):
                raise
            raise Malformed(f"{type(error).__name__}: {error}") from error

    def tell(self, canvas: Canvas, outcome: CanvasOutcome, progress: SendProgress) -> None:
        """Tell the chord of the end; of a failure also the rest of the chain, and the errbacks.

        A part that can never be told is logged and hinders no other.

        Raises:
            TRY_AGAIN, ChordBusy: something could not be told now.
        """
        if outcome.meta and (canvas.chord is not None or outcome.state != SUCCESS):
            # As Celery has it. A chord of groups is joined by its members' results, this one too.
            self._redis.set(keys.meta(canvas.id), outcome.meta, ex=self._ttl_s)
        parts: list[tuple[str, Callable[[Canvas, CanvasOutcome], None]]] = [
            ("chord", self._tell_chord)
        ]
        if outcome.state != SUCCESS:
            parts.append(("chain", self._fail_chain))
        if outcome.state == FAILURE:
            parts.append(("link_error", self._call_errbacks))
        for name, part in parts:
            if name in progress.told:
                continue
            try:
                part(canvas, outcome)
            except Exception as error:
                if isinstance(error, (*TRY_AGAIN, ChordBusy)) and not never_passes(error):
                    raise
                logger.exception("its %s cannot be told", name, extra={"job": canvas.id})
            progress.told.add(name)

    def _signature(self, written: Signature) -> Any:
        return signature_of(written, self._app)

    def _group(self, signatures: list[Any], group_id: str) -> Any:
        return celery_group(signatures, app=self._app, task_id=group_id)

    def _callbacks(self, canvas: Canvas) -> list[Any]:
        """Return the callbacks as Celery sends them: groups, and a group of all others."""
        signatures = [self._signature(callback) for callback in canvas.callbacks]
        if len(signatures) < 2:
            return signatures
        groups = [one for one in signatures if isinstance(one, celery_group)]
        others = [one for one in signatures if not isinstance(one, celery_group)]
        together = [self._group(others, id_of_sequel(canvas.id, "links"))] if others else []
        return [*groups, *together]

    def _tell_chord(self, canvas: Canvas, outcome: CanvasOutcome) -> None:
        if canvas.chord is None:
            return
        request = Context(
            id=canvas.id,
            group=canvas.group,
            group_index=canvas.group_index,
            chord=self._signature(canvas.chord),
        )
        self._part_return(request, outcome)

    def _part_return(self, request: Any, outcome: CanvasOutcome) -> None:
        self._backend.on_chord_part_return(request, outcome.state, outcome.value)
        if not request.group:
            return
        key = self._backend.get_key_for_group
        claim, size = self._redis.mget(key(request.group, ".c"), key(request.group, ".s"))
        if claim not in (None, _DONE) and size is not None:
            raise ChordBusy(f"the body of the chord {request.group} is being sent")

    def _fail_chain(self, canvas: Canvas, outcome: CanvasOutcome) -> None:
        """What would have come next ends as this job did, in the form that Celery gives it."""
        left = deque(copy.deepcopy(canvas.chain))
        while left:
            element = left.popleft()
            request: Any = Context(element)
            request.update(request.options)
            request.id = request.options.get("task_id")
            request.group = request.options.get("group_id")
            if request.id is not None:
                self._backend.store_result(
                    request.id,
                    outcome.value,
                    outcome.state,
                    traceback=outcome.traceback,
                    request=request,
                )
            if request.chord:
                request.chord = self._signature(chord_body(request.chord, request.group))
                self._part_return(request, outcome)
            body = (request.kwargs or {}).get("body")
            # A step that is a chord is over when its body is.
            if element.get("subtask_type") == "chord" and body is not None:
                left.append(body)

    def _call_errbacks(self, canvas: Canvas, _: CanvasOutcome) -> None:
        if canvas.errbacks:
            signatures = [self._signature(errback) for errback in canvas.errbacks]
            together = self._group(signatures, id_of_sequel(canvas.id, "errors"))
            together.apply_async((canvas.id,), parent_id=canvas.id, root_id=canvas.root_id)


def value_of(result: bytes) -> Any:
    """A result's JSON text as `.get()` gives it: kombu's forms become bytes.

    Raises:
        Malformed: it looks like a form of kombu's, and is none.
    """
    try:
        return kombu_json.loads(result.decode())
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Malformed(f"the result cannot be read: {error}") from error


def as_json(value: Any) -> bytes:
    """JSON as Celery writes it, of whatever a message said: all that JSON cannot say is replaced.

    Python's own reader takes half of a surrogate pair and numbers without end, and its writer
    writes them again, as no other reader takes them.
    """
    text: str = kombu_json.dumps(value, ensure_ascii=False)
    return strict_json(text.encode("utf-8", "replace"))
