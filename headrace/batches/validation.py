"""A batch's input, looked at line by line before anything of it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.batches.input_lines import BadLine, BatchLine, Requests
from headrace.batches.record import LineError

#: So many errors are told.
ERRORS_MAX: Final = 100
#: Whoever drives the batch is heard from so often, in lines.
_BEAT_LINES: Final = 1000
_DIGEST_BYTES: Final = 16


@dataclass(slots=True)
class ValidationResult:
    """What validation has found.

    Attributes:
        total: how many requests there are.
        errors: the first ERRORS_MAX.
        bad: how many there are in all.
    """

    total: int = 0
    errors: list[LineError] = field(default_factory=list)
    bad: int = 0

    def add(self, error: LineError) -> None:
        """Count an error, and tell it where there is room."""
        self.bad += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


def validate(
    lines: Iterable[BatchLine],
    requests: Requests,
    *,
    max_lines: int,
    limit_bytes: int,
    beat: Callable[[], None] = lambda: None,
) -> ValidationResult:
    """Look at every line.

    Memory grows by some 100 bytes with each, to know the ids that were there before.

    Args:
        lines: the file's.
        requests: how they are read.
        max_lines: more are too many.
        limit_bytes: of a line, for the message.
        beat: called every now and then; what it raises ends this.
    """
    found = ValidationResult()
    seen: set[bytes] = set()
    for line in lines:
        found.total += 1
        if found.total % _BEAT_LINES == 0:
            beat()
        if found.total > max_lines:
            found.add(
                LineError(
                    "too_many_lines",
                    f"the file has more than {max_lines} requests; split it, or raise "
                    "batch_max_lines (HEADRACE_BATCH_MAX_LINES)",
                    line.number,
                )
            )
            break
        try:
            _look(line, requests, seen, limit_bytes)
        except BadLine as error:
            found.add(error.at(line.number))
    if not found.total:
        found.add(LineError("empty_file", "the file has no requests"))
    return found


def _look(line: BatchLine, requests: Requests, seen: set[bytes], limit_bytes: int) -> None:
    if line.text is None:
        raise BadLine(
            "line_too_long",
            f"the line has more than {limit_bytes} bytes (body_limit_bytes)",
        )
    custom_id = requests.read(line.text).custom_id
    digest = hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
    if digest in seen:
        raise BadLine(
            "duplicate_custom_id",
            f"custom_id {custom_id[:128]!r} stands on a line before this one, too",
            "custom_id",
        )
    seen.add(digest)
