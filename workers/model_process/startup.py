"""The start of a model process or a preprocess process: its handler, context and warm-up."""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from handlers.loader import load_handler
from headrace.errors import ConfigError, HandlerError
from headrace.handler import Context, Handler
from headrace.jobs.options import InputDetails
from headrace.jobs.values.encoding import binary_input, nested_binaries
from headrace.jobs.values.media_types import BINARY_TYPE, image_type
from headrace.jobs.values.plain_values import plain
from headrace.signals import keeps_signal_stack
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.context import Input
from workers.model_process.executor import BatchExecutor, free_memory
from workers.model_process.outcomes import (
    encode_result,
    leads_to_author,
    out_of_memory,
    text_of,
    without_secrets,
)
from workers.protocol.frames import CPUS_VARIABLE

logger = logging.getLogger("headrace.model")

PR_SET_PDEATHSIG: Final = 1
WARM_UP_ID: Final = "warm-up"


def handler_of(config: dict[str, Any]) -> Handler:
    """Return the handler that the init frame names, not yet initialised; raise what it raises."""
    loaded = load_handler(config["handler"], Path(config["model_dir"]))
    return loaded() if isinstance(loaded, type) else loaded


@keeps_signal_stack()
def initialize(load: Callable[[Context], Any], context: Context) -> None:
    """Run `initialize` or `initialize_preprocess`; raise ConfigError if it returned a coroutine."""
    returned = load(context)
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise ConfigError(
            f"initialize returned a {type(returned).__name__}, so nothing was loaded",
            hint="call asyncio.run(...) in it to await something",
        )


def context_of(config: dict[str, Any], kind: type[Context]) -> Context:
    """Return the context that the init frame describes."""
    return kind(
        model_name=config["model"],
        version=config["version"],
        device=config["device"],
        model_dir=Path(config["model_dir"]),
        weights=Path(config["weights"]) if config["weights"] else None,
        weights_only=config["weights_only"],
        tensors=config["tensors"],
        declared_tensors=config["declared_tensors"] or {},
        options=config["options"],
        channels_last=config["channels_last"],
        max_batch_size=config["max_batch_size"],
        allowed_batch_sizes=config["allowed_batch_sizes"],
    )


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux).

    `parent` is its pid; 0 if it is not known.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the line above.
    if parent and os.getppid() != parent:
        os._exit(0)


def pin_to_cores(environ: Mapping[str, str]) -> str:
    """Pin this process and its later threads to its cores; return why that failed, or "" if not."""
    cpus = environ.get(CPUS_VARIABLE, "")
    if not cpus:
        return ""
    try:
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    except (OSError, ValueError, AttributeError) as error:
        return f"the process is not pinned to the CPUs {cpus}: {error}"
    return ""


def why_not_loaded(error: BaseException) -> str:
    """Describe a failed load to the handler's author.

    The traceback has the frames of the author's code only, not those of Headrace and the import
    machinery. A ConfigError ends with its message and hint. Without frames of the author, the text
    is the message of a HandlerError, and the whole traceback of any other error.
    """
    own = (error.__cause__ if isinstance(error, ConfigError) else None) or error
    frames = _their_frames(own.__traceback__)
    lines: list[str] = []
    if frames is not None or own is not error:
        lines.append("".join(traceback.format_exception(own.with_traceback(frames))))
    elif not isinstance(error, (ConfigError, HandlerError)):
        lines.append("".join(traceback.format_exception(error)))
    if isinstance(error, ConfigError) or (isinstance(error, HandlerError) and not lines):
        lines.append(error.message_with_hint + "\n")
    return without_secrets(text_of("\n".join(lines)))


def _their_frames(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None:
        if not leads_to_author(frames.tb_frame.f_code.co_filename):
            return frames
        frames = frames.tb_next
    return None


@keeps_signal_stack()
def warm_up(
    executor: BatchExecutor,
    parameters: Mapping[str, Any] | None = None,
    ran: list[SubBatch] | None = None,
) -> int:
    """Run the handler's `example_input` alone and as a full batch; do nothing without one.

    A broken handler fails here. One-time work, such as choosing kernels and filling caches, is done
    here too, so that no job waits for it. With `allowed_batch_sizes` it runs as a batch of each of
    these sizes. `ran` gets these batches, with their times.

    Returns:
        0, or the largest batch that fits into memory if the full batch did not.

    Raises:
        Exception: what a verb raised, or returned as the example's result.
    """
    example = example_of(executor.handler)
    if example is None:
        return 0
    text, nested = as_sent(example)
    details = InputDetails(parameters=msgspec.json.encode(parameters or {}), nested=nested)
    _, value, kind, beside = executor.decode(WARM_UP_ID, text, details=details.text())
    alone: list[Input] = [(WARM_UP_ID, value, kind, beside)]
    batches = [SubBatch(alone, _run(executor, alone))]
    size_max = executor.context.max_batch_size
    halves = [size_max >> n for n in range(size_max.bit_length())]
    for size in executor.context.allowed_batch_sizes or halves:
        inputs: list[Input] = [(f"{WARM_UP_ID}-{n}", value, kind, beside) for n in range(size)]
        if size > 1 and (times := _times_if_it_fits(executor, inputs)) is not None:
            batches.append(SubBatch(inputs, times))
            if not executor.context.allowed_batch_sizes:
                break
    if ran is not None:
        ran += batches
    most = max(len(batch.inputs) for batch in batches)
    return most if most < size_max else 0


def example_of(handler: Handler) -> Any:
    """Return the handler's `example_input`, called if it is callable; None without one."""
    example = getattr(handler, "example_input", None)
    return example() if callable(example) else example


def as_sent(example: Any) -> tuple[bytes, bool]:
    """Return the example as a client's JSON, and whether it has bytes; or raise ConfigError."""
    if isinstance(example, (bytes, bytearray, memoryview)):
        return binary_input(bytes(example), BINARY_TYPE), False
    try:
        sent = nested_binaries(example, _as_part)
        return msgspec.json.encode(sent, enc_hook=plain), sent is not example
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"example_input is not a valid input: {error}",
            hint="return what a client can send: bytes, text, or a JSON value",
        ) from error


def _as_part(value: Any) -> bytes | None:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return None
    body = bytes(value)
    return binary_input(body, image_type(body) or BINARY_TYPE)


def _times_if_it_fits(executor: BatchExecutor, inputs: list[Input]) -> StageTimes | None:
    try:
        return _run(executor, inputs)
    except Exception as error:
        if not out_of_memory(error):
            raise
        logger.warning("warm-up: out of memory with %d items: %s", len(inputs), error)
    free_memory()
    return None


def _run(executor: BatchExecutor, inputs: list[Input]) -> StageTimes:
    sub_batch = SubBatch(inputs, StageTimes())
    executor.verbs(sub_batch)
    for result in sub_batch.results:
        if isinstance(result, BaseException):
            raise HandlerError(
                f"the result for example_input is an error: {type(result).__name__}: {result}"
            ) from result
        try:
            encode_result(result)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise HandlerError(
                f"the result for example_input cannot be sent: {text_of(error)}"
            ) from error
    return sub_batch.times
