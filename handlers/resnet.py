"""ResNet-18 in plain torch, after He et al., 2015, "Deep Residual Learning for Image Recognition".

Its weights have the names that torchvision's have, so that a state dict of either fits the other.
"""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around which the input is carried."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer)
            )

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Feature maps in, feature maps out."""
        carried = images if self.downsample is None else self.downsample(images)
        out = self.relu(self.bn1(self.conv1(images)))
        result: Tensor = self.relu(self.bn2(self.conv2(out)) + carried)
        return result


class ResNet18(nn.Module):
    """Eighteen layers with weights: 11.7 million for 1,000 classes."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, num_classes) of normalised images (N, 3, H, W)."""
        out = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(self.avgpool(out).flatten(1))
        return logits


def resnet18(num_classes: int = 1000) -> ResNet18:
    """The factory that `options.model` names. The weights are random."""
    return ResNet18(num_classes)


def _stage(inner: int, outer: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inner, outer, stride), BasicBlock(outer, outer, 1))
