"""The trained network of the handler `digits`, as an archive for TorchServe's image classifier."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from handlers.digits import WEIGHTS
from tests.extensions.torchserve.harness.archives import write_archive

#: Real digits that the network has not seen; a name begins with its digit.
IMAGES: Final = sorted((Path(__file__).parents[2] / "examples" / "digits").glob("*.png"))
#: The network, for images as the image classifier prepares them.
MODULE: Final = """
import torch
from torch import nn
from torch.nn import functional as F

class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.3))
        self.head = nn.Linear(48 * 2 * 2, 10)

    def forward(self, images):
        std = torch.tensor([0.229, 0.224, 0.225], device=images.device).view(3, 1, 1)
        mean = torch.tensor([0.485, 0.456, 0.406], device=images.device).view(3, 1, 1)
        grey = (images * std + mean).mean(1, keepdim=True)
        ink = F.pad(grey.amax((2, 3), keepdim=True) - grey, (16, 16, 16, 16))
        small = F.avg_pool2d(ink, 32)
        return self.head(self.body(small / small.amax((2, 3), keepdim=True)))
"""


def write_digits_archive(folder: Path) -> Path:
    """Write an unpacked archive; its labels are `digit 0` and so on, in the form with two names."""
    names = {str(n): [f"n{n}", f"digit {n}"] for n in range(10)}
    weights = io.BytesIO()
    torch.save(load_file(WEIGHTS), weights)
    return write_archive(
        folder,
        "image_classifier",
        {
            "net.py": MODULE,
            "model.pt": weights.getvalue(),
            "index_to_name.json": json.dumps(names),
        },
        modelFile="net.py",
        serializedFile="model.pt",
    )
