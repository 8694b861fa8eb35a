"""What the request's text names: one value of each type that a handler may return.

For `no list` and `too few` it returns what it must not.
"""

import json

import numpy
import torch

VALUES = {
    "str": "a text ö",
    "empty": "",
    "bytes": b"\x00\x01\xff",
    "bytearray": bytearray(b"abc"),
    "dict": {"b": 1, "a": [1, 2.5, None, True, "ö"]},
    "list": [1, [2, 3], {"x": "y"}],
    "nothing": [],
    "empty dict": {},
    "tuple": (1, ("a", "b")),
    "tensor": torch.arange(4, dtype=torch.float32).reshape(2, 2),
    "nan": {"x": float("nan"), "y": [float("inf"), -float("inf")]},
    "int": 7,
    "big int": 2**70,
    "float": 0.1,
    "bool": True,
    "none": None,
    "set": {1, 2},
    "numpy": numpy.zeros(2),
    "numpy scalar": numpy.float32(1.0),
    "int keys": {1: "a", 2: "b"},
    "object": object(),
}


def text(row):
    value = row.get("body", row.get("data"))
    if isinstance(value, bytes | bytearray):
        return value.decode()
    return value if isinstance(value, str) else json.dumps(value)


class Returns:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        names = [text(row) for row in data]
        if "no list" in names:
            return {"answer": 42}
        if "too few" in names:
            return names[1:]
        return [VALUES[name] for name in names]
