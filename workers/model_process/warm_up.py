"""The handler's own example through all verbs, before the first job: what would fail, fails now.

It also pays for what is done once, such as kernels that are chosen and caches that are filled, so
that no job waits for that. Runs in the model process.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, HandlerError
from headrace.handler import Handler
from headrace.jobs.encoding import binary_input, decode_input
from workers.model_process.batch_state import Input, StageTimes, SubBatch
from workers.model_process.executor import BatchExecutor, free_memory
from workers.model_process.outcomes import BINARY_TYPE, encode_result, out_of_memory

logger = logging.getLogger("headrace.model")

WARM_UP_ID: Final = "warm-up"


def warm_up(runner: BatchExecutor) -> int:
    """Run the handler's `example_input` alone and as a full batch; nothing if it gives none.

    With `allowed_batch_sizes`, as a batch of each of these.

    Returns:
        0, or the largest batch that memory has room for where the full one did not fit.

    Raises:
        Exception: what a verb raised, or gave in the place of the example's result.
    """
    example = example_of(runner.handler)
    if example is None:
        return 0
    value, kind = decode_input(as_sent(example))
    _run(runner, [(WARM_UP_ID, value, kind)])
    most, ran = runner.context.max_batch_size, 1
    for size in runner.context.allowed_batch_sizes or _halves(most):
        inputs = [(f"{WARM_UP_ID}-{n}", value, kind) for n in range(size)]
        if size > 1 and _fits(runner, inputs):
            ran = max(ran, size)
            if not runner.context.allowed_batch_sizes:
                break
    return ran if ran < most else 0


def _halves(size: int) -> list[int]:
    return [size >> n for n in range(size.bit_length())]


def example_of(handler: Handler) -> Any:
    """What `example_input` is or gives; None if there is none."""
    example = getattr(handler, "example_input", None)
    return example() if callable(example) else example


def as_sent(example: Any) -> bytes:
    """The input's JSON, as if a client had sent the example.

    Raises:
        ConfigError: it is nothing that a client can send.
    """
    if isinstance(example, (bytes, bytearray, memoryview)):
        return binary_input(bytes(example), BINARY_TYPE)
    try:
        return msgspec.json.encode(example)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"example_input is no input: {error}",
            hint="give what a client sends: bytes, text, or what JSON can say",
        ) from error


def _fits(runner: BatchExecutor, inputs: list[Input]) -> bool:
    try:
        _run(runner, inputs)
    except Exception as error:
        if not out_of_memory(error):
            raise
        logger.warning("warm-up: out of memory with %d items: %s", len(inputs), error)
    else:
        return True
    free_memory()
    return False


def _run(runner: BatchExecutor, inputs: list[Input]) -> None:
    group = SubBatch(inputs, StageTimes())
    runner.verbs(group)
    for result in group.results:
        if isinstance(result, BaseException):
            raise HandlerError(
                f"example_input gave an error: {type(result).__name__}: {result}"
            ) from result
        encode_result(result)
