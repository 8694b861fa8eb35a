"""TorchServe's handler of image classifiers whose images NVIDIA DALI prepares."""

from __future__ import annotations

from ts.torch_handler.dali_handler import DALIHandler
from ts.torch_handler.image_classifier import ImageClassifier


class DALIImageClassifier(DALIHandler, ImageClassifier):
    """Returns the likeliest classes of an image with their probabilities."""
