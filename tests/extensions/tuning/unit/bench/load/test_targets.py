"""Targets: the bytes of requests, and what answers have."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.tuning.bench.load.targets import (
    INPUTS_MAX,
    BytesTensor,
    Input,
    read_inputs,
    reader,
    target_for,
    triton_tensor,
)
from extensions.tuning.bench.measurement import Protocol
from headrace.errors import InvalidRequest

JSON = Input(b'{"x":1}', "application/json")
PNG = Input(b"\x89PNG", "image/png")


def request(
    protocol: Protocol, one: Input = JSON, **options: Any
) -> tuple[str, dict[str, str], bytes]:
    """The first line of a request, its headers and its body."""
    url = options.pop("url", "http://host:8080")
    (whole,) = target_for(protocol, url, "a b", [one], **options).requests
    head, _, body = whole.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return first, dict(line.split(": ", 1) for line in lines), body


def test_a_submit_waits_and_its_result_is_kept_for_a_moment() -> None:
    first, headers, body = request("headrace", version="2", api_key="hr_1")
    assert first == "POST /api/v1/models/a%20b/versions/2/jobs?wait=60&result_ttl=60 HTTP/1.1"
    assert headers["Authorization"] == "Bearer hr_1"
    assert headers["Content-Length"] == "7"
    assert body == JSON.body
    assert request("headrace")[0].startswith("POST /api/v1/models/a%20b/jobs?")


def test_parameters_and_a_path_before_the_routes_are_kept() -> None:
    target = target_for("headrace", "https://u:p@host/api/", "m", [PNG], parameters={"q": "a&b"})
    assert target.requests[0].startswith(
        b"POST /api/api/v1/models/m/jobs?wait=60&result_ttl=60&q=a%26b "
    )
    assert target.address == ("host", 443, True)
    assert "p@" not in target.url
    assert b"Host: host\r\n" in target.requests[0]


def test_a_prediction_of_torchserve() -> None:
    first, headers, body = request("torchserve", PNG, version="1.0")
    assert first == "POST /predictions/a%20b/1.0 HTTP/1.1"
    assert headers["Content-Type"] == "image/png"
    assert body == PNG.body


def test_an_inference_of_triton_is_json_or_a_binary_tensor() -> None:
    first, headers, body = request("triton")
    assert first == "POST /v2/models/a%20b/infer HTTP/1.1"
    assert body == JSON.body
    first, headers, body = request("triton", PNG, version="3", tensor=BytesTensor("IMAGE", 2))
    assert first == "POST /v2/models/a%20b/versions/3/infer HTTP/1.1"
    size = int(headers["Inference-Header-Content-Length"])
    (tensor,) = msgspec.json.decode(body[:size])["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("IMAGE", "BYTES", [1, 1])
    assert tensor["parameters"] == {"binary_data_size": 8}
    assert body[size:] == struct.pack("<I", 4) + PNG.body
    with pytest.raises(InvalidRequest, match="Triton cannot be sent image/png"):
        request("triton", PNG)


def test_the_tensor_is_the_only_one_that_takes_bytes() -> None:
    text = {"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}
    assert triton_tensor({"inputs": [text]}) == ("TEXT", 2)
    assert triton_tensor({"inputs": [text, text]}) is None
    assert triton_tensor({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1]}]}) is None
    assert triton_tensor({}) is None


def test_a_job_that_succeeded_has_stages_and_its_batch() -> None:
    job = {
        "id": "1", "status": "succeeded", "batch_size": 4,
        "timings": {
            "queued": 1, "hold": 2, "device_wait": 3, "preprocess": 4, "inference": 5,
            "postprocess": 6, "total": 21,
        },
    }  # fmt: skip
    found = reader("headrace")(200, msgspec.json.encode(job))
    assert (found.error, found.batch_size, found.again) == ("", 4, "")
    assert found.stages == (1, 2, 3, 4, 5, 6, 21)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b'{"id":"1","status":"failed","error":{"type":"invalid-input"}}', "invalid-input"),
        (200, b'{"id":"1","status":"expired"}', "expired"),
        (429, b'{"type":"/problems/queue-full"}', "429 queue-full"),
        (502, b"<html>", "502"),
        (200, b"[]", "unreadable answer"),
    ],
)
def test_other_answers_of_headrace_are_errors(status: int, body: bytes, error: str) -> None:
    assert reader("headrace")(status, body).error == error


def test_a_job_that_has_not_ended_is_asked_for_again() -> None:
    found = reader("headrace")(202, b'{"id":"j-1","status":"running"}')
    assert found.again == "/api/v1/jobs/j-1?wait=60"
    assert found.error == ""


def test_other_servers_have_a_status_only() -> None:
    assert reader("torchserve")(200, b"anything").error == ""
    assert reader("triton")(503, b"").error == "503"


def test_a_folder_is_read_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.json", "a.png", ".hidden"):
        (tmp_path / name).write_bytes(b"1")
    inputs, words = read_inputs(tmp_path)
    assert [one.content_type for one in inputs] == ["image/png", "application/json"]
    assert words == f"2 files of {tmp_path.name}, 1 bytes on average"
    one, words = read_inputs(tmp_path / "b.json", "text/plain")
    assert one == [Input(b"1", "text/plain")]
    assert words == "b.json, 1 bytes"


def test_of_a_large_folder_only_the_first_files_are_read(tmp_path: Path) -> None:
    for number in range(INPUTS_MAX + 1):
        (tmp_path / f"{number:05}.txt").write_bytes(b"")
    inputs, words = read_inputs(tmp_path)
    assert len(inputs) == INPUTS_MAX
    assert words.startswith("1,000 of 1,001 files")


def test_an_empty_folder_and_a_wrong_address_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the folder has no files"):
        read_inputs(tmp_path)
    for url in ("ftp://host", "http://"):
        with pytest.raises(InvalidRequest, match="is no address of a server"):
            target_for("headrace", url, "m", [JSON])
