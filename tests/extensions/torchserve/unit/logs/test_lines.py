"""The lines of TorchServe's logs, as scripts and its benchmark suite parse them."""

from __future__ import annotations

import math
import re
import time

import pytest

from extensions.torchserve.logs.lines import (
    access_text,
    console_line,
    is_line,
    metric_text,
    number,
    read_lines,
    stamp,
)

AT = 1_700_000_000.1239


def test_a_time_is_local_with_milliseconds() -> None:
    assert stamp(AT) == time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(AT)) + ",123"


def test_the_metric_of_a_handler() -> None:
    dimensions = (("ModelName", "m"), ("Level", "Model"))
    assert metric_text("PredictionTime", "ms", 12.3, dimensions, "h", AT, "a,b") == (
        "PredictionTime.ms:12.3|#ModelName:m,Level:Model|#hostname:h,requestID:a,b,"
        "timestamp:1700000000"
    )
    outside = metric_text("Loads", "Count", 3, dimensions, "h", AT, None)
    assert outside.endswith("|#hostname:h,requestID:null,timestamp:1700000000")


def test_a_metric_of_the_server() -> None:
    assert metric_text("QueueTime", "Milliseconds", 0, (("Level", "Host"),), "h", AT) == (
        "QueueTime.Milliseconds:0.0|#Level:Host|#hostname:h,timestamp:1700000000"
    )


def test_the_benchmark_suite_finds_the_value() -> None:
    text = metric_text("QueueTime", "Milliseconds", 7, (("Level", "Host"),), "h", AT)
    line = console_line(AT, "INFO", "W-9000-m_1.0", "TS_METRICS", text)
    assert re.match(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3} \[INFO \] W-9000-m_1.0 TS_METRICS - Q", line
    )
    assert line.split("|", maxsplit=1)[0].split(":")[3] == "7.0"


def test_a_request() -> None:
    client = ("127.0.0.1", 64003)
    text = access_text(client, "POST", "/predictions/x?a=1", 200, 118.9)
    assert text == '/127.0.0.1:64003 "POST /predictions/x?a=1 HTTP/1.1" 200 118'
    assert access_text(None, "GET", "/ping", 200, 0.2) == '/-:0 "GET /ping HTTP/1.1" 200 0'


def test_no_text_of_a_client_or_a_handler_begins_a_line() -> None:
    text = access_text(None, "GET", "/x\n2023 forged", 200, 1)
    assert "\n" not in text
    assert "\n" not in metric_text("A", "u\n", 1, (("k\n", "v\r\n"),), "h", AT, "1\n")
    assert console_line(AT, "INFO", "a thread\n", "L", "x").count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3.0"), (2.5, "2.5"), (1e16, "1.0e+16"), (1.5e-7, "1.5e-07"),
        (12345678.0, "12345678.0"),
        (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"),
    ],
)  # fmt: skip
def test_a_number_has_a_decimal_point(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def test_a_line_is_read_again(level: str) -> None:
    line = console_line(AT, level, "main", "ACCESS_LOG", "the - text")
    assert is_line(line.encode())
    other = "another line\n"
    assert not is_line(other.encode())
    ((whole, at, logger, text),) = read_lines(f"{other}{line}{other}".encode())
    assert (whole, logger, text) == (line.encode(), b"ACCESS_LOG", b"the - text\n")
    assert at == stamp(AT).encode()
