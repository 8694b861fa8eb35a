"""The base class of handlers whose images NVIDIA DALI prepares."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from typing_extensions import override

from handlers.common.images import from_base64
from ts.handler_utils.preprocess.dali import get_dali_pipeline
from ts.torch_handler.vision_handler import VisionHandler, value_of


class DALIHandler(VisionHandler):
    """Prepares the images of a batch with a pipeline of DALI."""

    pipeline: Any

    @override
    def initialize(self, context: Any) -> None:
        self.pipeline = get_dali_pipeline(context)
        super().initialize(context)

    @override
    def preprocess(self, data: Any) -> Any:
        """Return the batch as a tensor (N, …) on the device."""
        (images,) = self.pipeline.run(source=[_bytes_of(value_of(row)) for row in data])
        if hasattr(images, "as_cpu"):
            images = images.as_cpu()
        return torch.stack([torch.from_numpy(np.array(one)) for one in images]).to(self.device)


def _bytes_of(image: Any) -> Any:
    if isinstance(image, str):
        image = from_base64(image)
    if isinstance(image, (bytes, bytearray)):
        return np.frombuffer(image, dtype=np.uint8)
    return image
