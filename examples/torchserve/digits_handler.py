"""A handler for TorchServe: the digit in an image. It imports `ts`, and runs unchanged."""

import io

import numpy as np
import torch
from PIL import Image

from ts.torch_handler.base_handler import BaseHandler

SIDE_PX = 8


class DigitsHandler(BaseHandler):
    """Classifies images of one digit, dark on light."""

    def preprocess(self, data):
        """Return a batch (N, 1, 8, 8) of ink in 0..1."""
        return torch.stack([self.read(row.get("data") or row.get("body")) for row in data])

    def read(self, body):
        """Return the digit of one image (1, 8, 8)."""
        image = Image.open(io.BytesIO(body)).convert("L").resize((SIDE_PX, SIDE_PX))
        return 1 - torch.from_numpy(np.asarray(image, dtype=np.float32)).unsqueeze(0) / 255

    def postprocess(self, data):
        """Return one mapping for each image."""
        probabilities = data.softmax(dim=1)
        return [
            {"digit": int(row.argmax()), "probability": round(float(row.max()), 4)}
            for row in probabilities
        ]
