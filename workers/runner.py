"""A batch through the handler's verbs, to one outcome per item. Runs in the model process.

When a verb raises, nobody fails at first: the batch is split and its halves run again, until the
inputs that make it raise stand alone and fail with their own error. Knows no queue and no sockets.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from headrace.errors import (
    HandlerError,
    HeadraceError,
    InputError,
    InvalidRequest,
    JobError,
    OutOfMemory,
)
from headrace.handler import Context, Handler, Response
from headrace.messages import decode_input

TRACEBACK_MAX_CHARS: Final = 16_000
MESSAGE_MAX_CHARS: Final = 2_000
BINARY_TYPE: Final = "application/octet-stream"

_BYTES: Final = (bytes, bytearray, memoryview)

#: [true, result JSON, content type or ""] or [false, code, message, retryable, traceback].
Outcome = list[Any]


@dataclass(slots=True)
class StageTimes:
    """What a batch took, summed over all its attempts.

    Attributes:
        preprocess: milliseconds in that verb, as in the two that follow.
        padding: inputs that were added to reach an allowed size.
    """

    preprocess: float = 0.0
    inference: float = 0.0
    postprocess: float = 0.0
    padding: int = 0

    def as_list(self) -> list[float]:
        """The form in which they cross to the worker."""
        return [self.preprocess, self.inference, self.postprocess]


@dataclass(slots=True)
class Runner:
    """Runs batches through one handler."""

    handler: Handler
    context: Context
    _times: StageTimes = field(default_factory=StageTimes)

    def run(self, items: Sequence[tuple[str, bytes]]) -> tuple[list[Outcome], StageTimes]:
        """Run a batch of (id, input JSON); one outcome per item, in order."""
        self._times = StageTimes()
        outcomes: list[Outcome | None] = [None] * len(items)
        inputs: dict[int, tuple[str, Any, str]] = {}
        for index, (job_id, raw) in enumerate(items):
            try:
                inputs[index] = (job_id, *decode_input(raw))
            except InvalidRequest as error:
                outcomes[index] = failure(InputError(error.message))
        if inputs:
            self._attempt(list(inputs), inputs, outcomes)
        missing = failure(HandlerError("the handler gave no result for this input"))
        return [outcome or missing for outcome in outcomes], self._times

    def _attempt(
        self,
        indices: list[int],
        inputs: dict[int, tuple[str, Any, str]],
        outcomes: list[Outcome | None],
    ) -> None:
        try:
            results = self._verbs([inputs[index] for index in indices])
        except Exception as error:  # noqa: BLE001 - whatever a handler raises becomes that job's error
            if len(indices) == 1:
                outcomes[indices[0]] = failure(error)
                return
            half = len(indices) // 2
            self._attempt(indices[:half], inputs, outcomes)
            self._attempt(indices[half:], inputs, outcomes)
            return
        for index, result in zip(indices, results, strict=True):
            outcomes[index] = _outcome(result)

    def _verbs(self, inputs: list[tuple[str, Any, str]]) -> list[Any]:
        self.context.request_ids = [job_id for job_id, _, _ in inputs]
        self.context.content_types = [kind for _, _, kind in inputs]
        clock = time.perf_counter
        started = clock()
        items = self.handler.preprocess([value for _, value, _ in inputs])
        prepared = clock()
        self._times.preprocess += (prepared - started) * 1000
        results = _checked(items, len(inputs), "preprocess")
        good = [index for index, item in enumerate(results) if not isinstance(item, BaseException)]
        if not good:
            return results
        # A handler may return a tensor; it is passed on whole unless an item dropped out.
        batch = items if len(good) == len(results) else [results[index] for index in good]
        padding = self._padding(len(good))
        if padding:
            batch = _padded(batch, len(good), padding)
            self._times.padding += padding
        outputs = self.handler.inference(batch)
        inferred = clock()
        self._times.inference += (inferred - prepared) * 1000
        size = len(good) + padding
        final = _checked(self.handler.postprocess(outputs), size, "postprocess")
        self._times.postprocess += (clock() - inferred) * 1000
        for index, result in zip(good, final[: len(good)], strict=True):
            results[index] = result
        return results

    def _padding(self, count: int) -> int:
        allowed = self.context.allowed_batch_sizes
        return next((size for size in allowed if size >= count), count) - count


def _padded(items: Any, count: int, padding: int) -> Any:
    """The batch with its last item so many times more: of a shape that the model takes for sure."""
    if hasattr(items, "shape"):  # a tensor or an array; both take a list of rows
        return items[[*range(count), *[count - 1] * padding]]
    return [*items, *[items[-1]] * padding]


def _checked(values: Any, length: int, verb: str) -> list[Any]:
    try:
        listed = list(values)
    except TypeError:
        raise HandlerError(
            f"{verb} returned {type(values).__name__}, not a list of {length}"
        ) from None
    if len(listed) != length:
        raise HandlerError(f"{verb} returned {len(listed)} values for {length} inputs")
    return listed


def _outcome(result: Any) -> Outcome:
    if isinstance(result, BaseException):
        return failure(result)
    try:
        return encode_result(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return failure(HandlerError(f"the result cannot be sent: {error}"))


def encode_result(result: Any) -> Outcome:
    """A result on the wire; bytes take the form that stock Celery clients read as bytes.

    Raises:
        TypeError: it holds a value that JSON cannot say, or a Response a body that is no bytes.
    """
    if isinstance(result, Response):
        # msgspec would write text as it is, and readers would take it for base64.
        if not isinstance(result.body, _BYTES):
            raise TypeError(f"a Response's body is bytes, not {type(result.body).__name__}")
        return [True, _binary(bytes(result.body)), result.content_type or BINARY_TYPE]
    if isinstance(result, _BYTES):
        return [True, _binary(bytes(result)), BINARY_TYPE]
    return [True, msgspec.json.encode(result, enc_hook=_plain), ""]


def _binary(body: bytes) -> bytes:
    # msgspec writes bytes as a base64 string.
    return b'{"__type__": "base64", "__value__": %s}' % msgspec.json.encode(body)


def _plain(value: Any) -> Any:
    """Lists and numbers for numpy arrays, numpy scalars and torch tensors."""
    for method in ("tolist", "item"):
        convert = getattr(value, method, None)
        if convert is not None:
            return convert()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not a JSON value")


def failure(error: BaseException) -> Outcome:
    """The outcome of an item on which the handler raised, or that it gave back as an error."""
    typed = _typed(error)
    text = ""
    if error.__traceback__ is not None:
        text = "".join(traceback.format_exception(error))[-TRACEBACK_MAX_CHARS:]
    return [False, typed.code, typed.message[:MESSAGE_MAX_CHARS], typed.retryable, text]


def _typed(error: BaseException) -> HeadraceError:
    if isinstance(error, JobError):
        return error
    torch = sys.modules.get("torch")
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or (
        torch is not None and isinstance(error, torch.OutOfMemoryError)
    ):
        return OutOfMemory(message)
    return HandlerError(message if not isinstance(error, HeadraceError) else error.message)
