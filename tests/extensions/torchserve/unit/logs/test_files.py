"""TorchServe's log files: which line is in which file, and what happens to a full one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.logs.files import KEPT, LogFile, LogFiles
from extensions.torchserve.logs.lines import console_line, stamp
from headrace.errors import ConfigError

AT = 1_700_000_000.5
TODAY = time.localtime().tm_yday


def written(files: LogFiles, *lines: str) -> None:
    files.write("".join(lines).encode())
    files.close()


def test_each_logger_has_its_file(tmp_path: Path) -> None:
    logs, metrics = tmp_path / "logs", tmp_path / "metrics"
    files = LogFiles(TorchServeConfig(log_location=logs, metrics_location=metrics))
    lines = [
        console_line(AT, "INFO", "t", name, f"text of {name}")
        for name in ("ACCESS_LOG", "TS_METRICS", "MODEL_METRICS", "MODEL_LOG", "workers.consumer")
    ]
    written(files, *lines)
    short = f"{stamp(AT)} - text of "
    assert (logs / "access_log.log").read_text() == f"{short}ACCESS_LOG\n"
    assert (metrics / "ts_metrics.log").read_text() == f"{short}TS_METRICS\n"
    assert (metrics / "model_metrics.log").read_text() == f"{short}MODEL_METRICS\n"
    assert (logs / "model_log.log").read_text() == lines[3]
    assert (logs / "ts_log.log").read_text() == "".join(lines)
    assert len(list(logs.iterdir())) + len(list(metrics.iterdir())) == 5


def test_a_restart_appends(tmp_path: Path) -> None:
    config = TorchServeConfig(log_location=tmp_path, metrics_location=tmp_path)
    for _ in range(2):
        written(LogFiles(config), console_line(AT, "INFO", "t", "l", "x"))
    assert (tmp_path / "ts_log.log").read_text().count("\n") == 2


def test_a_full_file_is_renamed_and_five_are_kept(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", max_bytes=10)
    for number in range(9):
        file.write(f"line {number}\n".encode(), TODAY)
    file.close()
    assert (tmp_path / "a.log").read_text() == "line 8\n"
    old = [(tmp_path / f"a.log.{n}").read_text() for n in range(1, KEPT + 1)]
    assert old == [f"line {n}\n" for n in (7, 6, 5, 4, 3)]
    assert len(list(tmp_path.iterdir())) == KEPT + 1


def test_the_file_of_yesterday_is_renamed(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log")
    file.write(b"old\n", TODAY)
    file.write(b"new\n", TODAY + 1)
    file.close()
    assert (tmp_path / "a.log").read_text() == "new\n"
    assert (tmp_path / "a.log.1").read_text() == "old\n"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="log files cannot be created"):
        LogFiles(TorchServeConfig(log_location=tmp_path / "file" / "logs"))
