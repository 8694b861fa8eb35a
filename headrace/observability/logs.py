"""Sets up the logs of a process, and defines the fields of a line.

All code logs through `logging`, with job, model, batch and request as `extra`, not in the text.
`headrace.observability.log_format` formats the lines. It is imported with the first line: its
library takes 0.1 s to import, and most model processes log nothing. No line holds an input, a
result, a key or a password; `headrace.observability.redaction` removes those that get into one.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, TextIO

from typing_extensions import override

from headrace.observability.log_output import LogOutput
from headrace.observability.redaction import Redaction

CONSOLE: Final = "console"
JSON: Final = "json"
AUTO: Final = "auto"

#: The fields of a line and their meaning. `docs/logging.md` has the same table.
FIELDS: Final[Mapping[str, str]] = {
    "timestamp": "when, in UTC (JSON)",
    "level": "`debug`, `info`, `warning`, `error` or `critical`",
    "logger": "the part of the code that wrote the line, such as `workers.consumer`",
    "event": "what happened",
    "part": "the kind of process: `api`, `worker`, `model`, `preprocess`, `background`, `runner`",
    "pid": "the process (JSON)",
    "node": "the Celery worker with its host, if it has a name",
    "model": "the model, or the pipeline",
    "batch": "the batch on the device",
    "job": "the job",
    "jobs": "the jobs, if the line concerns several; at most 100 of them",
    "request": "the request's id",
    "api_batch": "the batch over HTTP (`/v1/batches`)",
    "file": "the file (`/v1/files`)",
    "webhook": "the delivery of a webhook",
    "size": "how many inputs a batch has",
    "reason": "why a batch left, or how a process ended",
    "model_pid": "the pid of a model process",
    "lost": "how many processes of the model this worker has lost",
    "failed": "how many jobs of a batch failed, or how many the line is about",
    "error": "the code of the error that a job failed with",
    "raised": "the exception that failed a job, and the handler's line that raised it",
    "duration_ms": "milliseconds that it took",
    "error_id": "the id that the client received, to search for",
    "key": "the API key's id",
    "method": "the request's method",
    "route": "the template of its path",
    "path": "its path, without the query",
    "status": "the HTTP status",
    "bytes": "the bytes of the answer's body",
    "client": "the address of the client",
    "trace_id": "the trace",
    "span_id": "the span",
    "traceback": "the stacks of a handler's process, or of its load",
    "exception": "the traceback of an error in Headrace itself",
}
#: The most jobs that a line names.
JOBS_MAX: Final = 100
#: Only these log at `debug`: libraries log much at that level, and private data.
OWN_PACKAGES: Final = ("api", "workers", "headrace", "handlers", "extensions", "runner")
#: These log a line per request, or the mistakes of clients.
_QUIETER: Final = {
    "httpx2": logging.WARNING,
    "httpcore2": logging.INFO,
    "python_multipart": logging.ERROR,
    "botocore": logging.INFO,
    "boto3": logging.INFO,
    "s3transfer": logging.INFO,
    "urllib3": logging.INFO,
    "PIL": logging.INFO,
    "matplotlib": logging.INFO,
    "opentelemetry": logging.WARNING,
}
_LINE_MAX_CHARS: Final = 64 * 1024

#: The fields of all lines of this thread or task.
LINE_FIELDS: Final[ContextVar[Mapping[str, Any] | None]] = ContextVar(
    "headrace_line_fields", default=None
)
#: The jobs whose verb runs in this thread.
RUNNING_JOBS: Final[ContextVar[Sequence[str]]] = ContextVar("headrace_running_jobs", default=())

#: The span of the lines of this thread or task, as a `traceparent`.
TRACE: Final[ContextVar[str]] = ContextVar("headrace_trace", default="")


def format_of(setting: str, stream: TextIO) -> str:
    """Return the format of a setting: `auto` is `console` on a terminal, else `json`."""
    if setting != AUTO:
        return setting
    return CONSOLE if stream.isatty() else JSON


def level_number(level: str) -> int:
    """Return the number of a level of the setting `log_level`."""
    return logging.getLevelNamesMapping()[level.upper()]


def about_jobs(ids: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a line about these jobs."""
    if len(ids) == 1:
        return {"job": ids[0]}
    return {"jobs": list(ids[:JOBS_MAX])} if ids else {}


def configure(
    shape: str,
    level: str | int,
    part: str,
    *,
    environ: Mapping[str, str],
    redis_url: str | None = None,
    user_code: bool = False,
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Set up the logs of this process. This replaces an earlier setup.

    Args:
        shape: the setting `log_format`: CONSOLE, JSON, AUTO, or the name of an extension.
        environ: its environment, for the secrets that no line may hold.
        redis_url: the URL of Redis, whose password no line may hold.
        user_code: whether it runs users' code, whose lines and fields are logged at any level.
    """
    stream = sys.__stderr__ or sys.stderr
    chosen = format_of(shape, stream)
    constant: dict[str, Any] = {"part": part, "pid": os.getpid()}
    if node := environ.get("HEADRACE_NODE"):
        constant["node"] = node
    constant.update(fields or {})
    formatter = _LazyFormatter(
        chosen, constant, Redaction.of(environ, redis_url), user_code=user_code
    )
    handler = _Handler(stream)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old, _Handler):
            old.close()
    root.handlers[:] = [handler]
    _set_levels(root, level, user_code=user_code)
    logging.captureWarnings(True)
    if chosen != CONSOLE:
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread
        if user_code:
            sys.stdout = _LogStream(sys.__stdout__ or sys.stdout, "stdout")
            sys.stderr = _LogStream(stream, "stderr")


def _set_levels(root: logging.Logger, level: str | int, *, user_code: bool) -> None:
    number = level if isinstance(level, int) else level_number(level)
    root.setLevel(number if user_code else max(number, logging.INFO))
    for name in OWN_PACKAGES:
        logging.getLogger(name).setLevel(number)
    for name, least in _QUIETER.items():
        logging.getLogger(name).setLevel(max(number, least))


class _Handler(logging.Handler):
    """Writes lines to standard error, but waits for no reader."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.output = LogOutput(stream, self._notice)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as the handlers of `logging` do
            self.handleError(record)
        else:
            self.output.write(f"{line}\n")

    @override
    def close(self) -> None:
        self.output.close()
        super().close()

    def _notice(self, missing: int) -> str:
        message = "%d lines of this log are missing: nothing read it"
        name, level = "headrace.observability", logging.WARNING
        return f"{self.format(logging.LogRecord(name, level, '', 0, message, (missing,), None))}\n"


def standard_error() -> LogOutput:
    """Return where the logs of this process go; `configure` must have been called."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            return handler.output
    raise RuntimeError("the logs of this process are not set up")


class _LazyFormatter(logging.Formatter):
    """Imports and builds the formatter when the first line is logged."""

    def __init__(
        self, shape: str, fields: dict[str, Any], redaction: Redaction, *, user_code: bool
    ) -> None:
        super().__init__()
        self.shape, self.fields, self.redaction = shape, fields, redaction
        self.allowed = None if user_code else frozenset(FIELDS)
        self._made: logging.Formatter | None = None

    @override
    def format(self, record: logging.LogRecord) -> str:
        if self._made is None:
            from headrace.observability.log_format import formatter

            self._made = formatter(self.shape, self.fields, allowed=self.allowed)
        return self.redaction.clean(self._made.format(record))


class _LogStream(io.TextIOBase):
    """Standard output or error of users' code: each line becomes a log line."""

    encoding = "utf-8"

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._logger = logging.getLogger(name)
        self._partial = threading.local()

    @property
    def buffer(self) -> Any:
        """Return the buffer for bytes, which are not logged."""
        return self._stream.buffer

    @override
    def fileno(self) -> int:
        return self._stream.fileno()

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, text: str) -> int:
        *lines, rest = (getattr(self._partial, "text", "") + text).split("\n")
        if len(rest) > _LINE_MAX_CHARS:
            lines, rest = [*lines, rest], ""
        self._partial.text = rest
        for line in lines:
            if line.strip():
                self._logger.info("%s", line[:_LINE_MAX_CHARS])
        return len(text)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    logging.getLogger("headrace").critical("ended by an error", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        name = args.thread.name if args.thread is not None else "a thread"
        logging.getLogger("headrace").error("%s ended by an error", name, exc_info=error)
