"""The tensors that a model takes and returns, as its `inputs` and `outputs` declare them.

The words are those of the Open Inference Protocol v2. An extension reads and writes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

#: The media type of inputs and results with tensors.
TENSORS_TYPE: Final = "application/vnd.headrace.tensors"
#: The parameter of the type that has the number of rows.
ROWS: Final = "rows"
#: A dimension of any size; as the first of a shape it counts rows.
ANY_SIZE: Final = -1

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
]
_JSON_TYPES: Final = {"BOOL": "boolean", "BYTES": "string", "I": "integer", "U": "integer"}


class DeclaredTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tensor that a model takes or returns.

    Attributes:
        name: its name in inputs and results.
        datatype: the type of its values, such as FP32 or BYTES.
        shape: the sizes of its dimensions; -1 is any size. A first -1 counts the rows of a request.
        optional: the input may be left out.
        labels: of an output with a score for each class, the names of the classes.
    """

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, Meta(ge=-1)]], Meta(min_length=1, max_length=16)]
    optional: bool = False
    labels: Annotated[list[str], Meta(max_length=100_000)] = []


DeclaredTensors = Annotated[list[DeclaredTensor], Meta(min_length=1, max_length=256)]


def json_schema(tensors: Iterable[DeclaredTensor]) -> dict[str, Any]:
    """Return the JSON Schema of an object with these tensors as lists."""
    properties: dict[str, Any] = {}
    required = []
    for tensor in tensors:
        kind = _JSON_TYPES.get(tensor.datatype) or _JSON_TYPES.get(tensor.datatype[0], "number")
        found: dict[str, Any] = {"type": kind}
        for size in reversed(tensor.shape):
            found = {"type": "array", "items": found}
            if size != ANY_SIZE:
                found |= {"minItems": size, "maxItems": size}
        properties[tensor.name] = found
        if not tensor.optional:
            required.append(tensor.name)
    needed = {"required": required} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def has_rows(tensors: Sequence[DeclaredTensor]) -> bool:
    """Return whether the first dimension of all tensors counts the rows of a request."""
    return all(tensor.shape[0] == ANY_SIZE for tensor in tensors)


def rows_of(content_type: str) -> int | None:
    """Return how many rows an input of this type has; None if the type has no number."""
    kind, *parameters = content_type.split(";")
    if kind != TENSORS_TYPE:
        return None
    named = (one.strip().partition("=") for one in parameters)
    return next((int(n) for name, _, n in named if name == ROWS and n.isdecimal()), None)
