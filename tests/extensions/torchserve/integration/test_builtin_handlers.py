"""TorchServe's built-in handlers over its URLs, and explanations: a real server and worker."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import numpy as np
import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.digits import IMAGES, write_digits_archive
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.workers.worker import Client, celery_worker, write_models

SEVEN = next(image for image in IMAGES if image.name.startswith("7")).read_bytes()
TONES = """
import torch

class Tones(torch.nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
"""


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("builtin")
    (folder / "tones.py").write_text(TONES)
    digits = write_digits_archive(folder / "digits")
    plain = write_archive(
        folder / "plain", "image_classifier", {"net.py": TONES}, modelFile="net.py"
    )
    models = write_models(
        folder,
        digits={"source": str(digits), "max_batch_size": 8, "max_batch_delay_ms": 200},
        plain={"source": str(plain)},
        native={
            "handler": "image_classifier",
            "options": {"model": "tones.py:Tones", "resize_px": 16, "crop_px": 8},
            "parameters": {"explain": {"type": "boolean"}, "target": {"type": "integer"}},
            "headers": ["explain"],
        },
    )
    config = folder / "config.properties"
    write_config(config, TorchServeConfig(disable_token_authorization=True))
    state = folder / "state"
    environ = {"HEADRACE_TORCHSERVE": str(config), "HEADRACE_STATE_DIR": str(state)}
    with redis_server() as server:
        catalog = load_models(Settings(models_file=models, state_dir=state))
        with (
            celery_worker(server.url, models, folder, environ=environ) as worker,
            api_server(
                server.url, catalog, torchserve=config, models_file=models, state_dir=state
            ) as api,
            Client(server.url, models) as ours,
        ):
            worker.wait_ready("digits", "plain", "native", timeout_s=240)
            yield api.http
            nothing_leaks(ours.redis)


def test_real_digits_get_their_labels_also_beside_a_bad_image(http: httpx2.Client) -> None:
    bodies = [image.read_bytes() for image in IMAGES]
    bodies.insert(3, b"no image")
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(
            pool.map(lambda body: http.post("/predictions/digits", content=body), bodies)
        )
    bad = answers.pop(3)
    assert bad.status_code == 503
    assert bad.json()["type"] == "InternalServerException"
    assert "not an image" in bad.json()["message"]
    for image, answer in zip(IMAGES, answers, strict=True):
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert len(found) == 5
        assert next(iter(found)) == f"digit {image.name[0]}"


def test_an_image_comes_in_each_form(http: httpx2.Client) -> None:
    encoded = base64.b64encode(SEVEN).decode()
    answers = [
        http.post("/predictions/digits", files={"data": ("seven.png", SEVEN)}),
        http.post("/predictions/digits", files={"body": ("seven.png", SEVEN, "image/png")}),
        http.post("/predictions/digits", json=encoded),
        http.post("/predictions/digits", content=encoded, headers={"Content-Type": "text/plain"}),
        http.post("/predictions/digits", json={"data": encoded}),
    ]
    for answer in answers[:-1]:
        assert next(iter(answer.json())) == "digit 7"
    assert answers[-1].status_code == 503, "JSON is one body, and no form"


def test_explanations_of_an_archive(http: httpx2.Client) -> None:
    files: Any = {"data": ("seven.png", SEVEN), "target": (None, "2")}
    first = np.array(http.post("/explanations/plain", content=SEVEN).json())
    second = np.array(http.post("/explanations/plain", files=files).json())
    assert first.shape == second.shape == (3, 224, 224)
    # Each channel is a class.
    assert first[0].any()
    assert second[2].any()
    assert not first[1:].any()
    assert not second[:2].any()


def test_explanations_as_jobs(http: httpx2.Client) -> None:
    for model in ("plain", "native"):
        answer = http.post(
            f"/api/v1/models/{model}/jobs", params={"explain": "true", "wait": 60}, content=SEVEN
        )
        assert answer.json()["status"] == "succeeded", answer.text
        result = http.get(f"/api/v1/jobs/{answer.json()['id']}/result")
        assert np.ndim(result.json()) == 3


def test_explanations_of_a_native_model(http: httpx2.Client) -> None:
    answer = http.post("/explanations/native", params={"target": 1}, content=SEVEN)
    found = np.array(answer.json())
    assert found.shape == (3, 8, 8)
    assert found[1].any()
    assert not found[[0, 2]].any()
    assert set(http.post("/predictions/native", content=SEVEN).json()) == {"classes"}
