"""Runs a handler on inputs in this terminal: `headrace try`. Shows what each verb returns.

It uses the executor of the model process, so padding, errors as items and the checks of lengths are
the same. An exception ends it with its traceback, and `breakpoint()` works.
"""

from __future__ import annotations

import logging
import sys
import time
from bdb import BdbQuit
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from headrace.handler import Context
from headrace.jobs.options import InputDetails
from headrace.jobs.progress import Progress
from headrace.jobs.values.value_check import ERRORS_MAX, check_of, summary
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.context import Input
from workers.model_process.executor import BatchExecutor
from workers.model_process.outcomes import outcomes_of
from workers.model_process.startup import (
    as_sent,
    context_of,
    example_of,
    handler_of,
    initialize,
    why_not_loaded,
)
from workers.model_process.tensors import tensors_of

_SHOWN_CHARS: Final = 300
_PREVIEW_BYTES: Final = 200


def main() -> int:
    """Run the batch that the file in the first argument describes; return the exit code."""
    file = Path(sys.argv[1])
    frame = msgspec.json.decode(file.read_bytes())
    file.unlink()
    logging.basicConfig(level=logging.INFO, format="log               %(levelname)s %(message)s")
    try:
        executor = _loaded(frame)
        inputs = [text.encode() for text in frame["inputs"]] or _example(executor)
        for text in inputs:
            _check(text, frame)
        details = InputDetails(parameters=msgspec.json.encode(frame["parameters"])).text()
        return _run(
            executor,
            [executor.decode(f"input-{n}", text, details=details) for n, text in enumerate(inputs)],
        )
    except BdbQuit:  # `q` in the debugger
        return 1
    except Exception as error:  # noqa: BLE001 - whatever the handler raises is shown
        # Only the frames of the handler's own code, as a failed load shows them.
        _say(why_not_loaded(error).rstrip())
        return 1


def _loaded(frame: dict[str, Any]) -> BatchExecutor:
    handler, context = handler_of(frame), context_of(frame, Context)
    context.reports_to(_show_progress)
    started = time.monotonic()
    initialize(handler.initialize, context)
    _step("initialize", started, f"{type(handler).__name__} on {context.device}")
    return BatchExecutor(handler, context, tensors=tensors_of(frame["declared_tensors"]))


def _check(text: bytes, frame: dict[str, Any]) -> None:
    check = check_of(frame["input_check"])
    mistakes = check.read(text)[2] if check is not None else []
    if mistakes:
        _fail(f"the API refuses this input: {summary(mistakes, ERRORS_MAX)}")


def _example(executor: BatchExecutor) -> list[bytes]:
    example = example_of(executor.handler)
    if example is None:
        _fail(
            "no input: give --input FILE, --text or --json-input; the handler has no example_input"
        )
    return [as_sent(example)[0]]


def _run(executor: BatchExecutor, inputs: list[Input]) -> int:
    batch = SubBatch(inputs, StageTimes())
    _step("inputs", None, _shown([value for _, value, *_ in inputs]))
    for verb, step in (
        ("preprocess", executor.prepare),
        ("inference", executor.infer),
        ("postprocess", executor.finish),
    ):
        if verb != "preprocess" and not batch.good:
            break
        started = time.monotonic()
        step(batch)
        value = {"preprocess": batch.items, "inference": batch.outputs}.get(verb, batch.results)
        _step(verb, started, _shown(value))
    return max([_print(result) for result in batch.results], default=0)


def _print(result: Any) -> int:
    """Print a result as JSON, or what a client gets in its place; return the exit code."""
    (outcome,) = outcomes_of([result], lambda _: None)
    if not outcome[0]:
        _, code, message, *_ = outcome
        _say(f"this input fails: {code}: {message}")
        return 1
    _, text, content_type = outcome
    if content_type:
        _say(f"a result of {len(text)} bytes, {content_type}: {text[:_PREVIEW_BYTES]!r}")
    else:
        sys.stdout.write(text.decode() + "\n")
    return 0


def _show_progress(item: int | None, progress: Progress) -> None:
    of = "" if item is None else f" of item {item}"
    _say(f"  progress{of}: {msgspec.json.encode(progress).decode()}")


def _step(name: str, started: float | None, text: str) -> None:
    took = "" if started is None else f"{(time.monotonic() - started) * 1000:.1f} ms"
    _say(f"{name:<12} {took:>12}  {text}")


def _shown(value: Any) -> str:
    """Return a value's type, shape and beginning."""
    if hasattr(value, "shape"):
        return f"{type(value).__name__} {tuple(value.shape)} {getattr(value, 'dtype', '')}"
    if isinstance(value, (bytes, bytearray)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_shown, value[:3])) + (", ..." if len(value) > 3 else "")
        return f"{type(value).__name__} of {len(value)}: {inside}"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _fail(text: str) -> NoReturn:
    _say(f"headrace: {text}")
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
