"""TorchServe's handler of object detection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from handlers.common.vision import MIN_SCORE, found_objects
from headrace.errors import InputError
from ts.handler_utils.transforms import Compose, ToRGB, ToTensor
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Returns the boxes, labels and scores of objects whose score is `threshold` or more."""

    threshold: float = MIN_SCORE
    image_processing: Any = Compose([ToRGB(), ToTensor()])

    @override
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the batch; a program that declares a list gets one."""
        if isinstance(data, Tensor) and takes_list(self.model):
            data = list(data)
        return super().inference(data, *args, **kwargs)

    @override
    def postprocess(self, data: Any) -> Any:
        """Return a list of `{label: box, "score": score}` for each image."""
        if isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], dict):
            # A scripted model of torchvision returns its losses first.
            data = data[1]
        return [[self._object(*found) for found in self._found(one)] for one in data]

    @override
    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> Any:
        """Refuse: boxes have no integrated gradients."""
        raise InputError(
            "this model detects objects, and has no explanations; ask for a prediction"
        )

    def _found(self, detected: Any) -> list[tuple[list[float], int, float]]:
        return found_objects(detected, self.threshold)

    def _object(self, box: list[float], label: int, score: float) -> dict[str, Any]:
        found: dict[str, Any] = map_class_to_label([[box]], self.mapping, [[label]])[0]  # type: ignore[list-item]
        found["score"] = score
        return found

    @override
    def _batch(self, images: list[Tensor]) -> Any:
        # Models of detection take images of any sizes; most others need one tensor.
        if len({image.shape for image in images}) == 1:
            return super()._batch(images)
        return [image.to(self.device) for image in images]


def takes_list(model: object) -> bool:
    """Return whether a TorchScript program declares its first input as a list."""
    schema = getattr(getattr(model, "forward", None), "schema", None)
    arguments: Any = getattr(schema, "arguments", ())
    return len(arguments) > 1 and isinstance(arguments[1].type, torch.ListType)
