"""A context for tests of handlers, without a server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch

from ts.metrics.metrics_store import MetricsStore
from ts.utils.util import get_yaml_config


class MockContext:
    """The context of a model in a folder; with `explain`, later requests ask for an explanation."""

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: str | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | None = None,
    ) -> None:
        named = {"serializedFile": model_pt_file, "modelFile": model_file}
        self.manifest = {"model": {key: name for key, name in named.items() if name}}
        self.system_properties: dict[str, Any] = {"model_dir": model_dir}
        if torch.cuda.is_available() and gpu_id:
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.metrics = MetricsStore(uuid.uuid4(), model_name)
        config = model_yaml_config_file
        self.model_yaml_config = get_yaml_config(Path(model_dir) / config) if config else {}

    def get_request_header(self, idx: int, exp: str) -> bool:
        """Return whether a request after the first asks for an explanation."""
        return bool(idx and exp and self.explain)
