"""The main job through every real part: images over HTTP, answers out, bad inputs alone."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image

from examples.digits_dataset import held_out
from handlers.digits import Digits
from headrace.handler import Context
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.up import ROOT, RunningUp, running_up, write_models
from tests.harness.wait import wait_until

#: So many of the images that training never saw are sent.
SENT = 120
#: A long hold and one replica make batches of what is sent together.
MODELS = {
    "digits": {"handler": "digits", "max_batch_size": 32},
    "image_classifier": {
        "handler": "image_classifier",
        "max_batch_size": 8,
        "options": {"model": "handlers.resnet:resnet18", "max_pixels": 1_000_000},
    },
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("digits")
    with running_up(folder, models=write_models(folder, MODELS)) as running:

        def loaded() -> bool:
            status, _ = running.request("GET", "/ready?models=all")
            return status == 200

        wait_until(loaded, "all models are loaded", 90)
        yield running


@pytest.fixture(scope="module")
def http(up: RunningUp) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{up.port}", timeout=60, verify=PLAIN) as client:
        yield client


def submit_and_wait(http: httpx2.Client, model: str, body: bytes, kind: str) -> dict[str, Any]:
    response = http.post(
        f"/api/v1/models/{model}/jobs",
        content=body,
        headers={"Content-Type": kind, "Prefer": "wait=50"},
    )
    assert response.status_code == 200, response.text
    job = response.json()
    assert isinstance(job, dict)
    return job


def test_the_held_out_digits_come_back_as_they_are_classified_in_process(
    http: httpx2.Client,
) -> None:
    # All 360 are read in tests/unit/handlers/test_digits.py.
    images = held_out()[:SENT]
    handler = Digits()
    handler.initialize(Context("digits", "1.0", "cpu", ROOT, max_batch_size=SENT))
    items = handler.preprocess([png for png, _ in images])
    expected = handler.postprocess(handler.inference(items))

    def classify(png: bytes) -> dict[str, Any]:
        return submit_and_wait(http, "digits", png, "image/png")

    with ThreadPoolExecutor(16) as pool:
        jobs = list(pool.map(classify, (png for png, _ in images)))
    results = [job["result"] for job in jobs]
    assert [result["digit"] for result in results] == [answer["digit"] for answer in expected]
    for result, answer in zip(results, expected, strict=True):
        assert result["probability"] == pytest.approx(answer["probability"], abs=1e-4)
    right = sum(
        result["digit"] == label for result, (_, label) in zip(results, images, strict=True)
    )
    assert right / len(images) >= 0.97
    assert max(job["batch_size"] for job in jobs) > 1


def jpeg() -> bytes:
    out = io.BytesIO()
    Image.effect_noise((300, 200), 60).convert("RGB").save(out, "JPEG")
    return out.getvalue()


def bomb() -> bytes:
    """A PNG of a few hundred bytes whose header promises 65,500 x 65,500 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 65_500, 65_500, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100_000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


BAD = {
    "not an image": (b"certainly no image, but long enough", "image/png"),
    "truncated JPEG": (jpeg()[:400], "image/jpeg"),
    "0 bytes": (b"", "image/png"),
    "JSON": (b'{"pixels": [1, 2, 3]}', "application/json"),
    "decompression bomb": (bomb(), "image/png"),
}


@pytest.mark.parametrize("model", ["digits", "image_classifier"])
def test_each_bad_input_ends_as_its_own_typed_error_while_its_batch_mates_succeed(
    http: httpx2.Client, model: str
) -> None:
    good = (
        jpeg()
        if model == "image_classifier"
        else (ROOT / "examples/digits/3_0705.png").read_bytes()
    )
    sent = [*BAD.values(), *[(good, "application/octet-stream")] * 8]
    with ThreadPoolExecutor(len(sent)) as pool:
        jobs = list(pool.map(lambda one: submit_and_wait(http, model, *one), sent))
    for name, job in zip(BAD, jobs, strict=False):
        assert job["status"] == "failed", (name, job)
        assert job["error"]["type"] == "input-error", (name, job)
        assert len(job["error"]["message"]) > 15, (name, job)
        problem = http.get(f"/api/v1/jobs/{job['id']}/result")
        assert problem.status_code == 422
        assert problem.headers["content-type"] == "application/problem+json"
    for job in jobs[len(BAD) :]:
        assert job["status"] == "succeeded", job


def test_wrong_json_is_refused_before_it_becomes_a_job(http: httpx2.Client) -> None:
    response = http.post(
        "/api/v1/models/digits/jobs",
        content=b'{"a": ',
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 400
    assert response.json()["type"] == "/problems/invalid-request"


def test_a_restart_finds_what_was_queued_and_what_was_answered(tmp_path: Path) -> None:
    image = (ROOT / "examples/digits/7_1496.png").read_bytes()
    png = {"Content-Type": "image/png"}
    with running_up(tmp_path) as first:
        path = "/api/v1/models/echo/jobs"
        _, answered = first.request("PUT", path, image, **png, Prefer="wait=60")
        assert answered["status"] == "succeeded"
        assert first.raw_result(answered["id"]) == image
        _, late = first.request("POST", f"{path}?countdown=5", image, **png)
        assert first.stop() == 0
        first.output.unlink()
    with running_up(tmp_path) as second:
        assert second.job(answered["id"]) == answered
        second.result_of(late["id"])
        for job in (answered, late):
            assert second.raw_result(job["id"]) == image
        queues = json.dumps(second.request("GET", "/api/v1/queues")[1])
        assert '"in_flight": 0' in queues
