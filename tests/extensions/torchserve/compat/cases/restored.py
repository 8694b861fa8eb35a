"""Requests to servers that start from a snapshot: one of its archives is broken.

All handlers get the envelope `kservev2`, and the workflow store is empty.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tests.extensions.torchserve.compat.cases.builtin import BASE64, TENSOR
from tests.extensions.torchserve.compat.cases.table import JSON, TEXT, Scenario, manage, predict
from tests.extensions.torchserve.compat.servers import Ask

LOADED: Final = ("tensors", "explained", "image_classifier")
#: TorchServe reads no further after a broken archive, so these come last.
MODELS: Final = (*LOADED, "cut", "bad_manifest")


def _restored(archive: str) -> dict[str, Any]:
    return {
        "defaultVersion": True,
        "marName": archive,
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 1,
        "maxBatchDelay": 100,
        "responseTimeout": 600,
        "startupTimeout": 600,
        "runtimeType": "python",
    }


SNAPSHOT: Final = {
    "name": "compat.cfg",
    "modelCount": len(MODELS),
    "created": 1,
    "models": {name: {"1.0": _restored(f"{name}.mar")} for name in MODELS},
}
CONFIG: Final = {
    "service_envelope": "kservev2",
    "model_snapshot": json.dumps(SNAPSHOT),
    "default_response_timeout": "600",
    "number_of_netty_threads": "2",
}


#: What the handler returns, by name.
NAMED: Final = (
    "int", "floats", "nested", "text", "texts", "mixed", "bool", "none", "object", "small",
    "ragged", "complex", "too many", "nothing", "fails", "names",
)  # fmt: skip


def _input(data: Sequence[Any], shape: Sequence[int], kind: str = "INT64", **more: Any) -> Any:
    return {"name": "in", "shape": shape, "datatype": kind, "data": data, **more}


def _infer(
    *inputs: Any, path: str = "/v2/models/tensors/infer", sent: str = "mine", **more: Any
) -> Ask:
    body = {"id": sent, "inputs": inputs, "parameters": {"a": 1}}
    return Ask("POST", path, json.dumps(body).encode(), JSON, **more)


def _named(text: str) -> Any:
    return _input([text, "more"], [2], "BYTES", name=text)


RESTORED: Final = (
    Scenario(
        "snapshot",
        (
            manage("GET", "/models"),
            *(manage("GET", f"/models/{name}") for name in MODELS),
            Ask("GET", "/ping"),
        ),
    ),
    Scenario(
        "kserve_v2",
        (
            _infer(_input([1, 2, 3, 4], [2, 2])),
            _infer(_input([1.5], [1], "FP32"), _input([], [0], "FP32", name="none")),
            _infer(_input([[1, 2], [3, 4]], [4])),
            _infer(_input([1, 2, 3], [2, 2])),
            _infer(_input([True, False], [2, 1], "BOOL")),
            *(_infer(_named(text)) for text in NAMED),
            _infer(_named("fails")),
            _infer(_named("int"), sent="", differs="id-of-another"),
            _infer(_named("int"), _named("text")),
            _infer(_named("int"), path="/v2/models/tensors/explain"),
            _infer(_named("int"), path="/v2/models/tensors/versions/1.0/infer"),
            _infer(_named("int"), path="/predictions/tensors"),
            _infer(),
            _infer(_input([], [0], "BYTES")),
            _infer({"name": "in", "data": [1]}),
            Ask("POST", "/v2/models/tensors/infer", b'{"inputs": [', JSON),
            Ask("POST", "/v2/models/tensors/infer", b"{}", JSON),
            predict("tensors", b"text", headers=TEXT),
            predict("tensors", json.dumps({"id": "x", "inputs": [_named("int")]}).encode()),
            _infer(_input([1], [1]), path="/v2/models/explained/infer"),
        ),
    ),
    Scenario(
        "kserve_v2_images",
        tuple(
            _infer(one, path=f"/v2/models/image_classifier/{verb}")
            for one in (
                _input([BASE64.decode()], [1], "BYTES"),
                _input(json.loads(TENSOR), [3, 2, 2], "FP32"),
                _input([0.5] * 12, [3, 2, 2], "FP32"),
                _input([0.5] * 12, [12], "FP32"),
            )
            for verb in ("infer", "explain")
        ),
    ),
)
