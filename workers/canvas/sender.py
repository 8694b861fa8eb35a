"""Sends the callbacks of a job through Celery: links, chains and chords.

It does what `celery.app.trace` and `Backend.mark_as_failure` do with a task's request, with two
guarantees more. Tasks that are sent again after a crash have the same ids. A chord whose last
member was handled by a process that died is checked until its body is sent. A sender belongs to one
thread, as Celery's apps and results do.
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

from headrace.jobs.ids import callback_id
from headrace.jobs.values.encoding import strict_json
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import script
from workers.canvas.celery_client import canvas_app, close_app, signature_of
from workers.jobs.canvas import Canvas, Signature, chord_body

logger = logging.getLogger(__name__)

SUCCESS: Final = "SUCCESS"
FAILURE: Final = "FAILURE"
REVOKED: Final = "REVOKED"
#: The value of a chord's claim, in Celery's Redis backend, once its body is sent.
_DONE: Final = b"done"
#: Errors that may pass: Redis is away, or refuses a write.
TRY_AGAIN: Final = (OperationalError, RedisError, OSError)


def never_passes(error: BaseException) -> bool:
    """Return whether Redis will always refuse: a key to be written has another type."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ResponseError) and "WRONGTYPE" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class ChordBusy(Exception):
    """Another process has begun to send a chord's body, and may have died before the end."""


class CanvasOutcome(NamedTuple):
    """The end of a job, in Celery's terms.

    Attributes:
        state: SUCCESS, FAILURE or REVOKED.
        value: the result as `.get()` returns it, or the exception as Celery writes it in JSON.
        meta: the Celery result to store; b"" if none is stored (ignore_result).
    """

    state: str
    value: Any
    traceback: str | None
    meta: bytes


class Malformed(Exception):
    """A job's callbacks can never be sent."""


@dataclass(slots=True)
class SendProgress:
    """The callbacks that were sent for a job, so that the next attempt does not send them again.

    Attributes:
        children: the sent tasks, as Celery's results list them; None before they are sent.
        reported: the parts that know of the end: the chord, the chain, the errbacks.
        tries: the number of failed attempts.
    """

    children: list[Any] | None = None
    reported: set[str] = field(default_factory=set)
    tries: int = 0


class CanvasSender:
    """A connection to the broker and to Celery's results."""

    def __init__(self, redis_url: str, result_ttl_s: int) -> None:
        self._ttl_s = result_ttl_s
        self._redis: Any = connect(redis_url)
        self._app: Any = canvas_app(redis_url, result_ttl_s)
        self._backend: Any = self._app.backend

    def close(self) -> None:
        """Close the connections."""
        close_app(self._app)
        self._redis.close()

    def begin(self, job_id: str, token: str) -> int:
        """Return whether to send: SEND_CALLBACKS, FENCED or CANCELLED of scripts/jobs.py."""
        return int(call_script(self._redis, script("jobs/canvas_begin").call([], job_id, token)))

    def remove_orphan(self, queue: str, name: bytes) -> None:
        """Remove the end of a job that a script has left under this name."""
        with self._redis.pipeline() as pipe:
            pipe.zrem(keys.orphaned(queue), name)
            pipe.hdel(keys.orphaned_ends(queue), name)
            pipe.execute()

    def send(self, canvas: Canvas, outcome: CanvasOutcome, progress: SendProgress) -> None:
        """Send callbacks and the chain's next; raise Malformed if it never works, or TRY_AGAIN."""
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

    def report(self, canvas: Canvas, outcome: CanvasOutcome, progress: SendProgress) -> None:
        """Report the end to the chord, and a failure also to the chain's rest and the errbacks.

        A part that can never be reported to is logged, and the others are still reported to.

        Raises:
            TRY_AGAIN, ChordBusy: a part cannot be reported to now.
        """
        if outcome.meta and (canvas.chord is not None or outcome.state != SUCCESS):
            # As Celery does. It joins a chord of groups by the stored results of its members.
            self._redis.set(keys.meta(canvas.id), outcome.meta, ex=self._ttl_s)
        parts: list[tuple[str, Callable[[Canvas, CanvasOutcome], None]]] = [
            ("chord", self._report_to_chord)
        ]
        if outcome.state != SUCCESS:
            parts.append(("chain", self._fail_chain))
        if outcome.state == FAILURE:
            parts.append(("link_error", self._call_errbacks))
        job = {"job": canvas.id}
        for name, part in parts:
            if name in progress.reported:
                continue
            try:
                part(canvas, outcome)
            except Exception as error:
                if isinstance(error, (*TRY_AGAIN, ChordBusy)) and not never_passes(error):
                    raise
                logger.exception("end of job not reported to its %s", name, extra=job)
            progress.reported.add(name)

    def _signature(self, written: Signature) -> Any:
        return signature_of(written, self._app)

    def _group(self, signatures: list[Any], group_id: str) -> Any:
        return celery_group(signatures, app=self._app, task_id=group_id)

    def _callbacks(self, canvas: Canvas) -> list[Any]:
        """Return the callbacks as Celery sends them: groups, and a group of all others."""
        signatures = [self._signature(callback) for callback in canvas.callbacks]
        if len(signatures) < 2:
            return signatures
        groups = [signature for signature in signatures if isinstance(signature, celery_group)]
        others = [signature for signature in signatures if not isinstance(signature, celery_group)]
        together = [self._group(others, callback_id(canvas.id, "links"))] if others else []
        return [*groups, *together]

    def _report_to_chord(self, canvas: Canvas, outcome: CanvasOutcome) -> None:
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
        """End the rest of the chain as this job has ended, in the form that Celery gives it."""
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
            # A step that is a chord ends with its body.
            if element.get("subtask_type") == "chord" and body is not None:
                left.append(body)

    def _call_errbacks(self, canvas: Canvas, _: CanvasOutcome) -> None:
        if canvas.errbacks:
            signatures = [self._signature(errback) for errback in canvas.errbacks]
            together = self._group(signatures, callback_id(canvas.id, "errors"))
            together.apply_async((canvas.id,), parent_id=canvas.id, root_id=canvas.root_id)


def value_of(result: bytes) -> Any:
    """Return JSON text as `.get()` returns it, kombu's forms as bytes; or raise Malformed."""
    try:
        return kombu_json.loads(result.decode())
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise Malformed(f"the result cannot be read: {error}") from error


def as_json(value: Any) -> bytes:
    """Return JSON as Celery writes it, of any value from a message.

    Lone surrogates and infinite numbers are replaced: Python's JSON module reads and writes them,
    but no other parser accepts them.
    """
    text: str = kombu_json.dumps(value, ensure_ascii=False)
    return strict_json(text.encode("utf-8", "replace"))
