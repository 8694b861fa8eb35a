"""One deployment with models of each kind, for all tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from extensions.inference_protocols.settings import ProtocolSettings
from headrace.config.model.catalog import load_catalog
from tests.harness.programs import save_onnx
from tests.harness.servers.api_server import ApiServer, registry_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker, write_models

HANDLERS: Final = Path(__file__).parents[1] / "harness" / "tensor_models.py"


def tensors(datatype: str, shape: list[int], *names: str, **more: Any) -> dict[str, Any]:
    return {
        "tensors": [{"name": one, "datatype": datatype, "shape": shape, **more} for one in names]
    }


def _models(folder: Path) -> dict[str, Any]:
    identity = {"handler": f"{HANDLERS}:Identity"}
    kinds = ("FP32", "FP16", "BF16", "INT64", "UINT8", "BOOL", "BYTES")
    return {
        "echo": {"handler": "echo"},
        # No worker has its label, so its jobs wait.
        "waiting": {"handler": "echo", "labels": ["host=none"]},
        "doubled": {
            "handler": "tensor_model",
            "weights": str(save_onnx(folder / "doubled.onnx")),
            "inputs": tensors("FP32", [-1, 2], "x"),
        },
        "narrow": {"handler": "echo", "labels": ["host=none"], "max_queue_depth": 2},
        "simple": {
            "handler": f"{HANDLERS}:AddSub",
            "max_batch_size": 8,
            "inputs": tensors("INT32", [-1, 16], "INPUT0", "INPUT1"),
            "outputs": tensors("INT32", [-1, 16], "OUTPUT0", "OUTPUT1"),
        },
        "half": {
            "handler": f"{HANDLERS}:HalfPlusTwo",
            "max_batch_size": 8,
            "inputs": tensors("FP32", [-1], "x"),
            "outputs": tensors("FP32", [-1], "y"),
        },
        "scores": {
            "handler": f"{HANDLERS}:Scores",
            "inputs": tensors("FP32", [-1], "p"),
            "outputs": tensors("FP32", [-1, 2], "scores", labels=["cat", "dog"]),
        },
        "mixed": {
            "handler": f"{HANDLERS}:Mixed",
            "max_batch_size": 8,
            "inputs": {
                "tensors": [
                    {"name": "a", "datatype": "INT32", "shape": [-1, 2]},
                    {"name": "b", "datatype": "BYTES", "shape": [-1]},
                ]
            },
        },
        "wrong": {
            **identity,
            "inputs": tensors("UINT8", [-1, -1], "INPUT0"),
            "outputs": tensors("FP32", [-1, -1], "OUTPUT0"),
        },
        **{
            f"identity_{kind.lower()}": {**identity, "inputs": tensors(kind, [-1, -1], "INPUT0")}
            for kind in kinds
        },
    }


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("protocols")
    models = write_models(folder, **_models(folder))
    catalog = load_catalog(models)
    state = folder / "state"
    with (
        redis_server() as redis,
        registry_server(
            redis.url,
            models,
            models_file=models,
            state_dir=state,
            inference_protocols=ProtocolSettings(server_name="triton"),
        ) as server,
        celery_worker(
            redis.url, models, folder, environ={"HEADRACE_STATE_DIR": str(state)}
        ) as worker,
    ):
        worker.wait_ready(*(catalog.models.keys() - {"waiting", "narrow"}))
        yield server
