"""The envelope of version 2 of KServe's protocol: named tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from typing_extensions import override

from ts.torch_handler.request_envelope.base import BaseEnvelope, sent_in
from ts.torch_handler.request_envelope.kserve import parsed

#: The protocol's name of each type of numpy. Text and objects are `BYTES`.
_TYPES: Final = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "object": "BYTES",
}  # fmt: skip
_TEXT: Final = "BYTES"
#: The attribute of the context with the id that a client has sent.
_ID: Final = "input_request_id"


class KServev2Envelope(BaseEnvelope):
    """Gives the handler the `inputs` of the first request as rows; returns one object for them.

    The `data` of a row has the shape of the input, and is the first text of a `BYTES` input. The
    handler finds the names of the inputs in `context.input_names`, and the id that the client has
    sent in `context.input_request_id`.
    """

    @override
    def parse_input(self, data: Any) -> Any:
        body = parsed(sent_in(data[0]))
        rows = body["inputs"]
        for row in rows:
            row["data"] = _shaped(row)
        # A request that has failed leaves its id.
        vars(self.context).pop(_ID, None)
        if (given := body.get("id")) and given.strip():
            setattr(self.context, _ID, given)
        self.context.input_names = [row["name"] for row in rows]
        return rows

    @override
    def format_output(self, data: Any) -> Any:
        context, names = self.context, self.context.input_names
        model = (context.manifest or {}).get("model", {})
        return [
            {
                "id": getattr(context, _ID, None) or context.get_request_id(0),
                "model_name": model.get("modelName", context.model_name),
                "model_version": model.get("modelVersion"),
                "outputs": [_tensor(names[place], one) for place, one in enumerate(data)],
            }
        ]


def _shaped(row: Any) -> Any:
    if row["datatype"] == _TEXT:
        return row["data"][0]
    return np.array(row["data"]).reshape(tuple(row["shape"])).tolist()


def _tensor(name: str, value: Any) -> dict[str, Any]:
    array = np.array(value).flatten()
    datatype = _TYPES.get(str(array.dtype), _TEXT if array.dtype.kind == "U" else "")
    if not datatype:
        raise TypeError(
            f"the handler returned {array.dtype} for the input {name!r}, which KServe has no type "
            "for; return numbers or text"
        )
    return {"name": name, "datatype": datatype, "data": array.tolist(), "shape": list(array.shape)}
