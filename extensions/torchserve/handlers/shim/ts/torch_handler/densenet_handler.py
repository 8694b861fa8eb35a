"""A handler of an older kind: tensors in, tensors out."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import torch
from typing_extensions import override

from ts.torch_handler.base_handler import BaseHandler
from ts.utils import util


class DenseNetHandler(BaseHandler):
    """Runs a model on the tensors that clients have written by `torch.save`."""

    @override
    def preprocess(self, data: Any) -> Any:
        # The bytes come from a client, so nothing in them may run code.
        rows = [
            torch.load(io.BytesIO(row.get("data") or row.get("body")), weights_only=True)
            for row in data
        ]
        return torch.stack(rows)

    @override
    def postprocess(self, data: Any) -> Any:
        return list(data.split(1))


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that a module defines itself, perhaps only those below a class."""
    return util.list_classes_from_module(module, parent_class)
