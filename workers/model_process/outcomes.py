"""Encodes what a handler returned or raised for one item, for its way to the worker."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from headrace.errors import HandlerError, HeadraceError, JobError, OutOfMemory
from headrace.handler import Response
from headrace.jobs.encoding import kombu_bytes, strict_json
from workers.model_process.batch_state import Outcome, RaisedError
from workers.model_process.device_errors import out_of_memory

TRACEBACK_MAX_CHARS: Final = 16_000
MESSAGE_MAX_CHARS: Final = 2_000
BINARY_TYPE: Final = "application/octet-stream"

_BYTES: Final = (bytes, bytearray, memoryview)
#: Results that need a form of their own. One check rules all of them out, as most results do.
_OTHER: Final = (Response, bytes, bytearray, memoryview, msgspec.Raw)


def outcomes_of(results: Iterable[Any], raised: Callable[[Exception], None]) -> list[Outcome]:
    """Return the outcomes of items from the handler's results.

    Args:
        results: what the handler returned, one per item.
        raised: called with each error that a result's own methods raise while it is encoded. Only
            the item of that result fails.
    """
    return [_outcome_of(result, raised) for result in results]


def _outcome_of(result: Any, raised: Callable[[Exception], None]) -> Outcome:
    if isinstance(result, BaseException):
        return failure(result)
    try:
        return encode_result(result)
    except Exception as error:  # noqa: BLE001 - a result's methods are the handler's code
        raised(error)
        return _not_encodable(error)


def _not_encodable(error: Exception) -> Outcome:
    if out_of_memory(error):
        return failure(error)
    text = text_of(error)
    if not isinstance(error, (TypeError, ValueError, OverflowError, RecursionError)):
        text = f"{type(error).__name__}: {text}"
    return failure(HandlerError(f"the result cannot be sent: {text}"))


def encode_result(result: Any) -> Outcome:
    """Encode a result; bytes take the form that stock Celery clients decode to bytes.

    Raises:
        TypeError: it holds a value that JSON cannot express, or a Response whose body is not bytes.
        ValueError: it is, or holds, a `msgspec.Raw` that is not JSON.
    """
    if not isinstance(result, _OTHER):
        return [True, _checked(msgspec.json.encode(result, enc_hook=_plain)), ""]
    if isinstance(result, Response):
        # msgspec would write text as a string, and readers would decode it as base64.
        if not isinstance(result.body, _BYTES):
            raise TypeError(f"a Response's body must be bytes, not {type(result.body).__name__}")
        return [True, kombu_bytes(bytes(result.body)), result.content_type or BINARY_TYPE]
    if isinstance(result, msgspec.Raw):
        return [True, _checked(bytes(result)), ""]
    return [True, kombu_bytes(bytes(result)), BINARY_TYPE]


def _checked(text: bytes) -> bytes:
    # msgspec copies a Raw anywhere in a result without reading it. The check takes 0.5 us for a
    # small result, and half of the encoding's time for a long one.
    try:
        return strict_json(text)
    except ValueError as error:
        raise ValueError(f"its msgspec.Raw is not JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Return lists and numbers for numpy arrays, numpy scalars and torch tensors."""
    for method in ("tolist", "item"):
        convert = getattr(value, method, None)
        if convert is not None:
            return convert()
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not a JSON value")


def failure(error: BaseException) -> Outcome:
    """Return the outcome of an item whose verb raised this error or returned it as a result."""
    if isinstance(error, RaisedError):
        return error.outcome
    typed = _typed(error)
    # A subclass in a handler may lack any attribute of our class, or have replaced it.
    message = text_of(getattr(typed, "message", typed))[:MESSAGE_MAX_CHARS]
    code: Any = typed.code
    sent_code = text_of(code) if isinstance(code, str) else HandlerError.code
    return [False, sent_code, message, bool(typed.retryable), traceback_of(error)]


def text_of(value: Any) -> str:
    """Return `str(value)` as text that UTF-8 can encode, whatever the handler's class does.

    Lone surrogates, as in names of files that are not UTF-8, are escaped as `ascii()` does. A value
    whose `__str__` raises gives the name of its type.
    """
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - the method is the handler's own
        text = f"({type(value).__name__}, of which str() raises)"
    return text.encode("utf-8", "backslashreplace").decode()


def traceback_of(error: BaseException) -> str:
    """Return the end of the error's traceback; "" where it has none."""
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - as in `text_of`
        text = "".join(traceback.format_tb(error.__traceback__))
    return text_of(text[-TRACEBACK_MAX_CHARS:])


def _typed(error: BaseException) -> HeadraceError:
    if isinstance(error, JobError):
        return error
    message = f"{type(error).__name__}: {text_of(error)}"
    if out_of_memory(error):
        return OutOfMemory(message)
    ours = isinstance(error, HeadraceError)
    return HandlerError(text_of(getattr(error, "message", error)) if ours else message)
