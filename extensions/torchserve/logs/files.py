"""TorchServe's log files, written by the one process that has the lines of all others.

=====================  ==================================================
`access_log.log`       a line for each request
`ts_metrics.log`       the metrics of the server
`model_metrics.log`    the metrics of handlers
`model_log.log`        what handlers print and log
`ts_log.log`           every line of the server
=====================  ==================================================

A file that reaches 100 MB, and the file of yesterday, becomes `<name>.1`; five older files are
kept. Each write is one call, so a reader sees whole lines.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from extensions.torchserve.config.metrics_config import metrics_config_of
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.logs.lines import (
    ACCESS,
    LOG_FORMAT,
    MODEL_LOG,
    MODEL_METRICS,
    TS_METRICS,
    console_line,
    is_line,
    read_lines,
)
from headrace.errors import ConfigError

MAX_BYTES: Final = 100_000_000
KEPT: Final = 5
#: The file of a logger, whether it is in the folder of the metrics, and whether its lines have
#: the time and the text only.
_FILES: Final = {
    ACCESS: ("access_log.log", False, True),
    TS_METRICS: ("ts_metrics.log", True, True),
    MODEL_METRICS: ("model_metrics.log", True, True),
    MODEL_LOG: ("model_log.log", False, False),
}


def log_files_of(config: TorchServeConfig, log_format: str) -> LogFiles | None:
    """Return the log files of a configuration; None if the log has another format.

    Raises:
        ConfigError: its metrics.yaml cannot be read, or the files cannot be written.
    """
    metrics_config_of(config)  # an error is shown here, and not by each process
    return LogFiles(config) if log_format == LOG_FORMAT else None


class LogFile:
    """One file, opened for appending, up to `max_bytes`. Only one process may rotate it."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._fd, self._size, self._day = self._open()

    def write(self, data: bytes, day: int) -> None:
        """Append whole lines; rename the file first if it is full, or of another day."""
        if self._size and (day != self._day or self._size + len(data) > self._max_bytes):
            self._rotate(day)
        self._size += os.write(self._fd, data)
        self._day = day

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _open(self) -> tuple[int, int, int]:
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        found = os.fstat(fd)
        return fd, found.st_size, time.localtime(found.st_mtime).tm_yday

    def _rotate(self, day: int) -> None:
        name = self._path.name
        for n in range(KEPT, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                self._path.with_name(f"{name}.{n - 1}").replace(self._path.with_name(f"{name}.{n}"))
        self._path.replace(self._path.with_name(f"{name}.1"))
        os.close(self._fd)
        self._fd, self._size, _ = self._open()
        self._day = day


class LogFiles:
    """Writes the lines of all processes into the files of their loggers.

    A file that cannot be written, as on a full disk, loses lines and stops nothing.

    Raises:
        ConfigError: a folder or a file cannot be created.
    """

    is_line = staticmethod(is_line)

    def __init__(self, config: TorchServeConfig) -> None:
        try:
            for folder in (config.log_location, config.metrics_location):
                folder.mkdir(parents=True, exist_ok=True)
            self._all = LogFile(config.log_location / "ts_log.log")
            self._of = {
                logger.encode(): (
                    LogFile((config.metrics_location if metrics else config.log_location) / name),
                    short,
                )
                for logger, (name, metrics, short) in _FILES.items()
            }
        except OSError as error:
            raise ConfigError(
                f"TorchServe's log files cannot be created: {error}",
                hint="set LOG_LOCATION and METRICS_LOCATION to folders that can be written",
            ) from error

    def line(self, name: str, text: str) -> str:
        """Return a text of a process as a line of this form, with its end."""
        return console_line(time.time(), "INFO", name, name, text)

    def write(self, data: bytes) -> None:
        """Write complete lines, in the form of `console_line`."""
        parts: dict[bytes, list[bytes]] = {}
        for line, at, logger, text in read_lines(data):
            if logger in self._of:
                short = self._of[logger][1]
                parts.setdefault(logger, []).append(b"%b - %b" % (at, text) if short else line)
        day = time.localtime().tm_yday
        with contextlib.suppress(OSError):
            for logger, lines in parts.items():
                self._of[logger][0].write(b"".join(lines), day)
            self._all.write(data, day)

    def close(self) -> None:
        """Close all files."""
        for file, _ in self._of.values():
            file.close()
        self._all.close()
