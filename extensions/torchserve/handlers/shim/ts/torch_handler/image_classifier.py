"""TorchServe's handler of image classifiers."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from handlers.common.vision import best_classes
from ts.handler_utils.timer import timed
from ts.handler_utils.transforms import imagenet_transform
from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Returns the `topk` likeliest classes of an image with their probabilities."""

    topk: int = 5
    image_processing: Any = imagenet_transform()

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes a result has."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return how many classes a result has."""
        return self.topk

    @override
    @timed
    def postprocess(self, data: Any) -> Any:
        """Return `{label: probability}` for each image, the likeliest class first."""
        values, classes = best_classes(data, self.topk)
        return map_class_to_label(values.tolist(), self.mapping, classes.tolist())
