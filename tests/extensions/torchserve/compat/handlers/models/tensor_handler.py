"""A handler derived from BaseHandler, for eager weights and for TorchScript alike."""

import json

import torch

from ts.torch_handler.base_handler import BaseHandler


class TensorHandler(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        rows = [
            json.loads(bytes(row).decode()) if isinstance(row, bytes | bytearray) else row
            for row in rows
        ]
        return torch.as_tensor(rows, dtype=torch.float32, device=self.device)
