"""The envelope of version 2 of KServe's protocol: named tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from typing_extensions import override

from ts.torch_handler.request_envelope.base import BaseEnvelope, sent_in
from ts.torch_handler.request_envelope.kserve import explains, parsed

#: The protocol's name of each type of numpy. Types of text and objects have the last.
_TYPES: Final = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_TEXT: Final = "BYTES"


class KServev2Envelope(BaseEnvelope):
    """Gives the handler the list of `inputs` of each request; returns `outputs` for the first."""

    @override
    def parse_input(self, data: Any) -> Any:
        bodies = [parsed(sent_in(row)) for row in data]
        self._id = bodies[0].get("id")
        return [body.get("inputs") for body in bodies]

    @override
    def format_output(self, data: Any) -> Any:
        model = (self.context.manifest or {}).get("model", {})
        name = "explain" if explains(self.context) else "predict"
        return [
            {
                "id": self.context.get_request_id(0) if self._id is None else self._id,
                "model_name": model.get("modelName", self.context.model_name),
                "model_version": model.get("modelVersion"),
                "outputs": [_tensor(name, one) for one in data],
            }
        ]


def _tensor(name: str, value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    shape = list(array.shape)
    return {
        "name": name,
        "shape": shape,
        "datatype": _TYPES.get(str(array.dtype), _TEXT),
        "data": array.flatten().tolist() if shape else array.tolist(),
    }
