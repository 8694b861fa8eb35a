"""The network of the object detector: one object for each channel."""

import torch
from torch import nn


class Boxes(nn.Module):
    def forward(self, images):
        return [self.found(image) for image in images]

    def found(self, image):
        high, wide = image.shape[-2:]
        return {
            "boxes": torch.tensor([[0.0, 1.5, wide, high]] * 3),
            "labels": torch.tensor([1, 2, 3]),
            "scores": image.mean(dim=(1, 2)),
        }
