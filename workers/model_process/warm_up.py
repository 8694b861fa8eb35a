"""Runs the handler's example through all verbs before the first job, in the model process.

A broken handler fails here. One-time work, such as choosing kernels and filling caches, is done
here too, so that no job waits for it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, HandlerError
from headrace.handler import Handler
from headrace.jobs.encoding import binary_input, decode_input
from workers.model_process.batch_state import Input, StageTimes, SubBatch
from workers.model_process.device_errors import out_of_memory
from workers.model_process.executor import BatchExecutor, free_memory
from workers.model_process.outcomes import BINARY_TYPE, encode_result

logger = logging.getLogger("headrace.model")

WARM_UP_ID: Final = "warm-up"


def warm_up(executor: BatchExecutor) -> int:
    """Run the handler's `example_input` alone and as a full batch; do nothing without one.

    With `allowed_batch_sizes` it runs as a batch of each of these sizes.

    Returns:
        0, or the largest batch that fits into memory if the full one did not.

    Raises:
        Exception: what a verb raised, or returned as the example's result.
    """
    example = example_of(executor.handler)
    if example is None:
        return 0
    value, kind = decode_input(as_sent(example))
    _run(executor, [(WARM_UP_ID, value, kind)])
    most, ran = executor.context.max_batch_size, 1
    for size in executor.context.allowed_batch_sizes or _halves(most):
        inputs = [(f"{WARM_UP_ID}-{n}", value, kind) for n in range(size)]
        if size > 1 and _fits(executor, inputs):
            ran = max(ran, size)
            if not executor.context.allowed_batch_sizes:
                break
    return ran if ran < most else 0


def _halves(size: int) -> list[int]:
    return [size >> n for n in range(size.bit_length())]


def example_of(handler: Handler) -> Any:
    """Return the handler's `example_input`, called if it is callable; None without one."""
    example = getattr(handler, "example_input", None)
    return example() if callable(example) else example


def as_sent(example: Any) -> bytes:
    """Return the example as the JSON that a client would send.

    Raises:
        ConfigError: a client cannot send it.
    """
    if isinstance(example, (bytes, bytearray, memoryview)):
        return binary_input(bytes(example), BINARY_TYPE)
    try:
        return msgspec.json.encode(example)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"example_input is not a valid input: {error}",
            hint="return what a client can send: bytes, text, or a JSON value",
        ) from error


def _fits(executor: BatchExecutor, inputs: list[Input]) -> bool:
    try:
        _run(executor, inputs)
    except Exception as error:
        if not out_of_memory(error):
            raise
        logger.warning("warm-up: out of memory with %d items: %s", len(inputs), error)
    else:
        return True
    free_memory()
    return False


def _run(executor: BatchExecutor, inputs: list[Input]) -> None:
    sub_batch = SubBatch(inputs, StageTimes())
    executor.verbs(sub_batch)
    for result in sub_batch.results:
        if isinstance(result, BaseException):
            raise HandlerError(
                f"the result for example_input is an error: {type(result).__name__}: {result}"
            ) from result
        encode_result(result)
