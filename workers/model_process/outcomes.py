"""Encodes what a handler returned or raised for an item, and what an error means for the device.

After some errors, such as a device-side assert, every later call to CUDA fails in the process. Then
splitting the batch would fail all of it.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

import headrace
import workers
from handlers import loader
from handlers.extension import handler_parts
from headrace.errors import HandlerError, HeadraceError, InvalidRequest, JobError, OutOfMemory
from headrace.handler import Response
from headrace.jobs.values.encoding import strict_json
from headrace.jobs.values.media_types import BINARY_TYPE
from headrace.jobs.values.plain_values import plain
from headrace.jobs.values.value_check import ValueCheck, summary
from headrace.observability.redaction import SECRET_MAX_CHARS, of_environment
from headrace.response import (
    ErrorResponse,
    ResponseDetails,
    check_headers,
    split_details,
    with_details,
)

_LOADER: Final = Path(loader.__file__)
_OURS: Final = (
    f"{Path(workers.__file__).parent}/",
    f"{Path(headrace.__file__).parent}/",
    str(_LOADER),
    "<frozen importlib",
)
_STANDARD_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def leads_to_author(file: str) -> bool:
    """Return whether a frame of this file only leads to the author's code.

    Headrace calls a verb perhaps through the standard library, as asyncio and threads do.
    """
    parts = handler_parts().values()
    leading = {str(part.folder / name) for part in parts for name in part.leading}
    if file.startswith(_OURS) or file in leading:
        return True
    return file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _INSTALLED)


def author_traceback(error: BaseException) -> str:
    """Return an error's traceback, from the first frame of the author's code on.

    Errors in its chain are shortened in the same way. Where no frame is the author's, a
    `HeadraceError` has none: its message is enough. Another error keeps all of them.
    """
    shown = traceback.TracebackException.from_exception(error)
    pending, seen = [shown], 0
    while pending:
        part = pending.pop()
        own = _from_author(part.stack)
        seen += bool(own)
        if own or isinstance(error, headrace.errors.HeadraceError):
            part.stack[:] = own
        linked = (part.__cause__, part.__context__, *(part.exceptions or ()))
        pending += [below for below in linked if below]
    return "".join(shown.format()) if seen or shown.stack else ""


def _from_author(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    for at, frame in enumerate(stack):
        if not leads_to_author(frame.filename):
            return stack[at:]
    return []


TRACEBACK_MAX_CHARS: Final = 16_000
MESSAGE_MAX_CHARS: Final = 2_000

#: Texts of torch's errors that have no class: its CPU allocator, cuBLAS and cuDNN.
_NO_MEMORY: Final = ("can't allocate memory", "not enough memory: you tried", "_ALLOC_FAILED")
_BYTES: Final = (bytes, bytearray, memoryview)
#: Results that need a form of their own. One check rules all of them out, as most results do.
_OTHER: Final = (Response, bytes, bytearray, memoryview, msgspec.Raw)

#: [true, result JSON, ""], [true, the bytes of another result, their content type], or
#: [false, code, message, retryable, traceback] and then perhaps the JSON of an `ErrorResponse`.
Outcome = list[Any]


class RaisedError(Exception):
    """A failure that another process has encoded already."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome[2])
        self.outcome = outcome


def outcomes_of(results: Iterable[Any], raised: Callable[[Exception], None]) -> list[Outcome]:
    """Return the outcomes of items from the handler's results.

    `raised` is called with each error that a result's own methods raise while it is encoded. Only
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
    if isinstance(error, RecursionError):
        text = "it is nested too deeply, or contains itself"
    elif not isinstance(error, (TypeError, ValueError, OverflowError)):
        text = f"{type(error).__name__}: {text}"
    return failure(HandlerError(f"the result cannot be sent: {text}"))


def encode_result(result: Any) -> Outcome:
    """Encode a result: its JSON text and "", or its bytes and their content type.

    Raises:
        TypeError: it holds a value that JSON cannot express, or a Response whose body is not bytes.
        ValueError: it is, or holds, a `msgspec.Raw` that is not JSON, or it has too many headers.
    """
    if not isinstance(result, _OTHER):
        return [True, _checked(msgspec.json.encode(result, enc_hook=plain)), ""]
    if isinstance(result, Response):
        # msgspec would write text as a string, and readers would decode it as base64.
        if not isinstance(result.body, _BYTES):
            raise TypeError(f"a Response's body must be bytes, not {type(result.body).__name__}")
        kind = result.content_type or BINARY_TYPE
        if result.headers or result.status != ResponseDetails.status:
            kind = with_details(kind, ResponseDetails(result.status, result.headers))
        return [True, bytes(result.body), kind]
    if isinstance(result, msgspec.Raw):
        return [True, _checked(bytes(result)), ""]
    return [True, bytes(result), BINARY_TYPE]


def checked(outcome: Outcome, check: ValueCheck) -> Outcome:
    """Return the outcome of an item, or a failure where its result does not fit the `outputs`."""
    if not outcome[0]:
        return outcome
    _, text, given_type = outcome
    content_type, _ = split_details(given_type)
    try:
        mistakes = check.of_payload(text, content_type)
    except InvalidRequest as error:
        return failure(HandlerError(f"the result does not have its type: {error.message}"))
    if not mistakes:
        return outcome
    return failure(HandlerError(f"the result does not fit the outputs: {summary(mistakes)}"))


def _checked(text: bytes) -> bytes:
    # msgspec copies a Raw anywhere in a result without reading it. The check takes 0.1 us for a
    # small result, and 9 us for 18 kB of numbers, whose encoding takes 45 us.
    try:
        return strict_json(text)
    except ValueError as error:
        raise ValueError(f"its msgspec.Raw is not JSON: {error}") from None


def failure(error: BaseException) -> Outcome:
    """Return the outcome of an item whose verb raised this error or returned it as a result."""
    if isinstance(error, RaisedError):
        return error.outcome
    typed = _typed(error)
    # A subclass in a handler may lack any attribute of our class, or have replaced it.
    text = text_of(getattr(typed, "message", typed))[: MESSAGE_MAX_CHARS + SECRET_MAX_CHARS]
    message = without_secrets(text)[:MESSAGE_MAX_CHARS]
    code: Any = typed.code
    sent_code = text_of(code) if isinstance(code, str) else HandlerError.code
    outcome = [False, sent_code, message, bool(typed.retryable), traceback_of(error)]
    response = getattr(typed, "response", None)
    if not isinstance(response, ErrorResponse):
        return outcome
    try:
        check_headers(response.headers)
    except ValueError as too_many:
        return failure(HandlerError(str(too_many)).with_traceback(error.__traceback__))
    return [*outcome, msgspec.json.encode(response)]


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
    """Return an error's traceback without our frames and a long middle; "" if it has none."""
    if error.__traceback__ is None:
        return ""
    try:
        text = author_traceback(error)
    except Exception:  # noqa: BLE001 - as in `text_of`
        text = "".join(traceback.format_tb(error.__traceback__))
    if len(text) <= TRACEBACK_MAX_CHARS:
        return without_secrets(text_of(text))
    # The frames are at its beginning, and the exception's text, which may be long, at its end.
    half = TRACEBACK_MAX_CHARS // 2
    head = without_secrets(text_of(text[: half + SECRET_MAX_CHARS]))[:half]
    tail = without_secrets(text_of(text[-half - SECRET_MAX_CHARS :]))[-half:]
    return f"{head}\n[...]\n{tail}"


def without_secrets(text: str) -> str:
    """Return an error's text for those who may read it: it may quote a URL with a password."""
    return of_environment().clean(text)


def _typed(error: BaseException) -> HeadraceError:
    if isinstance(error, JobError):
        return error
    message = f"{type(error).__name__}: {text_of(error)}"
    if out_of_memory(error):
        return OutOfMemory(message)
    ours = isinstance(error, HeadraceError)
    return HandlerError(text_of(getattr(error, "message", error)) if ours else message)


def out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that the host or the device has no memory left."""
    if isinstance(error, RaisedError):
        return bool(error.outcome[1] == OutOfMemory.code)
    if isinstance(error, (MemoryError, OutOfMemory)):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the class may be the handler's own
        return False
    return any(words in text for words in _NO_MEMORY)


def device_lost(error: BaseException) -> bool:
    """Return whether nothing more can run on the device after a verb raised this error.

    CUDA's error texts differ between versions, so the device itself is probed. The probe waits for
    what runs on the device. It costs nothing in a process that has not used CUDA.
    """
    torch = sys.modules.get("torch")
    if torch is None or isinstance(error, torch.OutOfMemoryError):
        return False
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
