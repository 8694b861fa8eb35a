"""The network of the image segmenter: one class for each channel, and few pixels."""

from torch import nn
from torch.nn import functional as F


class Segments(nn.Module):
    def forward(self, images):
        return {"out": F.adaptive_avg_pool2d(images, 8) * 2, "aux": None}
