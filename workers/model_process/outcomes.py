"""What a handler gave or raised for one item, as it crosses to the worker."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from headrace.errors import HandlerError, HeadraceError, JobError, OutOfMemory
from headrace.handler import Response
from headrace.jobs.encoding import strict_json
from workers.model_process.raws import ForeignType

TRACEBACK_MAX_CHARS: Final = 16_000
MESSAGE_MAX_CHARS: Final = 2_000
BINARY_TYPE: Final = "application/octet-stream"

_BYTES: Final = (bytes, bytearray, memoryview)
#: What is not encoded as it is; one question, as most results are none of these.
_OTHER: Final = (Response, bytes, bytearray, memoryview, msgspec.Raw)
_FOREIGN: Final = ForeignType()
#: What torch says where it has no class for it: its CPU allocator, cuBLAS and cuDNN.
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory: you tried", "_ALLOC_FAILED")

#: [true, result JSON, content type or ""] or [false, code, message, retryable, traceback].
Outcome = list[Any]


class RaisedError(Exception):
    """A failure that another process has put into words already.

    Args:
        outcome: what it said.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome[2])
        self.outcome = outcome


def outcomes_of(results: Iterable[Any], raised: Callable[[Exception], None]) -> list[Outcome]:
    """The outcomes of items for which the handler gave these.

    Args:
        results: what it gave.
        raised: called with what a result's own methods raised as it was written; it fails alone.
    """
    raw = _FOREIGN.makers()
    return [_outcome_of(result, raw, raised) for result in results]


def _outcome_of(result: Any, raw: bool, raised: Callable[[Exception], None]) -> Outcome:
    if isinstance(result, BaseException):
        return failure(result)
    try:
        return encode_result(result, raw=raw)
    except Exception as error:  # noqa: BLE001 - those methods are the handler's, and raise what they like
        raised(error)
        return _unsent(error)


def _unsent(error: Exception) -> Outcome:
    if out_of_memory(error):
        return failure(error)
    words = said(error)
    if not isinstance(error, (TypeError, ValueError, OverflowError, RecursionError)):
        words = f"{type(error).__name__}: {words}"
    return failure(HandlerError(f"the result cannot be sent: {words}"))


def encode_result(result: Any, *, raw: bool = True) -> Outcome:
    """A result on the wire; bytes take the form that stock Celery clients read as bytes.

    Args:
        result: what the handler gave.
        raw: it can have a `msgspec.Raw` inside.

    Raises:
        TypeError: it holds a value that JSON cannot say, or a Response a body that is no bytes.
        ValueError: it is a `msgspec.Raw` of what is not JSON, or has one inside.
    """
    if not isinstance(result, _OTHER):
        text = msgspec.json.encode(result, enc_hook=_plain)
        return [True, _checked(text) if raw else text, ""]
    if isinstance(result, Response):
        # msgspec would write text as it is, and readers would take it for base64.
        if not isinstance(result.body, _BYTES):
            raise TypeError(f"a Response's body is bytes, not {type(result.body).__name__}")
        return [True, _binary(bytes(result.body)), result.content_type or BINARY_TYPE]
    if isinstance(result, msgspec.Raw):
        return [True, _checked(bytes(result)), ""]
    return [True, _binary(bytes(result)), BINARY_TYPE]


def _checked(text: bytes) -> bytes:
    # Others wrote it, perhaps Python's own json, and msgspec would pass it on unread.
    try:
        return strict_json(text)
    except ValueError as error:
        raise ValueError(f"its msgspec.Raw is not JSON: {error}") from None


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
    if isinstance(error, RaisedError):
        return error.outcome
    typed = _typed(error)
    # A class of the handler's own may have left out or replaced whatever ours has.
    words = said(getattr(typed, "message", typed))[:MESSAGE_MAX_CHARS]
    code: Any = typed.code
    word = said(code) if isinstance(code, str) else HandlerError.code
    return [False, word, words, bool(typed.retryable), traceback_of(error)]


def said(value: Any) -> str:
    """What it says of itself, in text that can be sent: an error of the handler's may say anything.

    What UTF-8 has no bytes for, as in names of files that are no UTF-8 themselves, is written as
    Python's `ascii` does it; of what cannot even be turned into text its type is said.
    """
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - it is the handler's own method
        text = f"({type(value).__name__}, of which str() raises)"
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_of(error: BaseException) -> str:
    """The end of its traceback; "" where there is none, or it cannot be written."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - as in `said`
        text = "".join(traceback.format_tb(error.__traceback__))
    return said(text[-TRACEBACK_MAX_CHARS:])


def out_of_memory(error: BaseException) -> bool:
    """Whether this says that there was no memory, of the host or of the device."""
    if isinstance(error, RaisedError):
        return bool(error.outcome[1] == OutOfMemory.code)
    if isinstance(error, (MemoryError, OutOfMemory)):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in said(error) for words in _NO_MEMORY)


def _typed(error: BaseException) -> HeadraceError:
    if isinstance(error, JobError):
        return error
    message = f"{type(error).__name__}: {said(error)}"
    if out_of_memory(error):
        return OutOfMemory(message)
    ours = isinstance(error, HeadraceError)
    return HandlerError(said(getattr(error, "message", error)) if ours else message)
