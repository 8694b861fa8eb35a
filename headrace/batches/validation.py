"""Check every line of a batch's input before any of it runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from headrace.batches.input_lines import BadLine, BatchLine, Requests
from headrace.batches.record import LineError

#: The most errors that are reported.
ERRORS_MAX: Final = 100
#: `check_stop` is called after this many lines.
_CHECK_LINES: Final = 1000
_DIGEST_BYTES: Final = 16


@dataclass(slots=True)
class ValidationResult:
    """The result of a validation.

    Attributes:
        total: the number of requests.
        errors: the first ERRORS_MAX errors.
        bad: the number of all errors.
    """

    total: int = 0
    errors: list[LineError] = field(default_factory=list)
    bad: int = 0

    def add(self, error: LineError) -> None:
        """Count an error, and report it if it is among the first."""
        self.bad += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(error)


def validate(
    lines: Iterable[BatchLine],
    requests: Requests,
    *,
    max_lines: int,
    limit_bytes: int,
    check_stop: Callable[[], None] = lambda: None,
) -> ValidationResult:
    """Check every line.

    Memory grows by about 100 bytes with each line, to find duplicate ids.

    Args:
        lines: the lines of the file.
        requests: reads them.
        max_lines: the most requests.
        limit_bytes: the most bytes of a line, for the message.
        check_stop: called after every _CHECK_LINES lines; an exception ends the validation.
    """
    found = ValidationResult()
    seen: set[bytes] = set()
    for line in lines:
        found.total += 1
        if found.total % _CHECK_LINES == 0:
            check_stop()
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
            _check(line, requests, seen, limit_bytes)
        except BadLine as error:
            found.add(error.at(line.number))
    if not found.total:
        found.add(LineError("empty_file", "the file has no requests"))
    return found


def _check(line: BatchLine, requests: Requests, seen: set[bytes], limit_bytes: int) -> None:
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
            f"custom_id {custom_id[:128]!r} is also on an earlier line",
            "custom_id",
        )
    seen.add(digest)
