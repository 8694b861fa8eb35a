"""The base classes of handlers of an older interface, with a signature of inputs and outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from typing_extensions import override


class ModelService:
    """A handler that runs the first request of a batch."""

    def __init__(
        self, model_name: str = "", model_dir: str = "", manifest: Any = None, gpu: Any = None
    ) -> None:
        self.ctx: Any = None
        self._context: Any = None
        self._signature: Any = None

    def initialize(self, context: Any) -> None:
        """Read the signature that the manifest names.

        Raises:
            ValueError: there is no such file.
        """
        self._context = self.ctx = context
        manifest = context.manifest
        section = manifest.get("Model") or manifest.get("model") or {}
        name = section.get("Signature") or section.get("signature") or "signature.json"
        path = Path(context.system_properties.get("model_dir")) / name
        if not path.is_file():
            raise ValueError(f"there is no file {path}, the signature of the model")
        self._signature = json.loads(path.read_text(encoding="utf-8"))

    def inference(self, data: Any) -> Any:
        """Return the result for a list of inputs."""
        raise NotImplementedError

    def ping(self) -> Any:
        """Return whether the handler works."""
        raise NotImplementedError

    def signature(self) -> Any:
        """Return the signature."""
        return self._signature

    def handle(self, data: Any, context: Any) -> list[Any]:
        """Run the first request of a batch."""
        name = self._signature["inputs"][0]["data_name"]
        row = data[0]
        sent = next((row[key] for key in (name, "body", "data") if row.get(key) is not None), None)
        is_json = self._signature["input_type"] == "application/json"
        if is_json and isinstance(sent, (bytes, bytearray)):
            sent = ast.literal_eval(sent.decode())
        result = self.inference([sent])
        return result if isinstance(result, list) else [result]


class SingleNodeService(ModelService):
    """A handler with three steps: `_preprocess`, `_inference` and `_postprocess`."""

    @override
    def inference(self, data: Any) -> Any:
        return self._postprocess(self._inference(self._preprocess(data)))

    def _preprocess(self, data: Any) -> Any:
        return data

    def _inference(self, data: Any) -> Any:
        return data

    def _postprocess(self, data: Any) -> Any:
        return data
