"""A network of an image classifier with three classes."""

from torch import nn


class Tones(nn.Module):
    def forward(self, images):
        return images.mean(dim=(2, 3))
