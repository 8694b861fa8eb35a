"""The network of the image classifier: the mean and the spread of each channel."""

import torch
from torch import nn


class Tones(nn.Module):
    def forward(self, images):
        return torch.cat([images.mean(dim=(2, 3)), images.pow(2).mean(dim=(2, 3))], dim=1)
