from __future__ import annotations

import io
import re
from pathlib import Path

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.logs.files import LogFiles
from extensions.torchserve.logs.lines import console_line
from headrace.server.supervisor.console import Console


def test_hidden_lines_of_one_name_are_not_shown() -> None:
    stream = io.StringIO()
    console = Console(stream, ["redis", "api"], colour=False, hidden={"redis": [b"bye bye"]})
    console.feed("redis", b"1:M ready to exit, bye ")
    console.feed("redis", b"bye...\nout of memory\n")
    console.feed("api", b"bye bye\n")
    assert stream.getvalue() == "redis | out of memory\napi   | bye bye\n"


def test_with_log_files_each_line_has_torchserves_form(tmp_path: Path) -> None:
    stream = io.StringIO()
    files = LogFiles(TorchServeConfig(log_location=tmp_path, metrics_location=tmp_path))
    console = Console(stream, ["redis", "api"], colour=False, files=files)
    own = console_line(1_700_000_000.5, "INFO", "api", "TS_METRICS", "QueueTime.Milliseconds:0.0")
    console.feed("api", own.encode()[:40])
    console.feed("api", own.encode()[40:])
    console.feed("redis", b"1:M ready\n\nlast words")
    console.flush("redis")
    console.print("headrace", "two\nlines")
    console.print_alone("Model server started.")
    first, *others, alone = stream.getvalue().splitlines()
    assert f"{first}\n" == own
    assert alone == "Model server started."
    assert [re.sub(r"^\S+ ", "", line) for line in others] == [
        "[INFO ] redis redis - 1:M ready",
        "[INFO ] redis redis - last words",
        "[INFO ] headrace headrace - two",
        "[INFO ] headrace headrace - lines",
    ]
    assert (tmp_path / "ts_log.log").read_text() == stream.getvalue()
    assert (tmp_path / "ts_metrics.log").read_text().count("\n") == 1
