"""ResNet-18 and ResNet-50 in plain torch.

After He et al., 2015, "Deep Residual Learning for Image Recognition". The weights have the same
names as torchvision's, so a state dict of one fits the other. ResNet-50 strides in its 3 x 3
convolutions, as torchvision's does.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override


class _Block(nn.Module):
    """Convolutions with a residual connection around them."""

    expansion: ClassVar = 1
    downsample: nn.Module | None

    def _carry(self, inner: int, outer: int, stride: int) -> None:
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer)
            )

    def _carried(self, images: Tensor) -> Tensor:
        carried: Tensor = images if self.downsample is None else self.downsample(images)
        return carried


class BasicBlock(_Block):
    """Two 3 x 3 convolutions."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self._carry(inner, width, stride)

    @override
    def forward(self, images: Tensor) -> Tensor:
        carried = self._carried(images)
        out = self.relu(self.bn1(self.conv1(images)))
        result: Tensor = self.relu(self.bn2(self.conv2(out)) + carried)
        return result


class Bottleneck(_Block):
    """A 3 x 3 convolution between two 1 x 1 convolutions, which narrow and widen."""

    expansion: ClassVar = 4

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = width * self.expansion
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self._carry(inner, outer, stride)

    @override
    def forward(self, images: Tensor) -> Tensor:
        carried = self._carried(images)
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.relu(self.bn2(self.conv2(out)))
        result: Tensor = self.relu(self.bn3(self.conv3(out)) + carried)
        return result


class ResNet(nn.Module):
    """Four stages of blocks, with `depths` blocks each."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, depths[0], 64, 64, stride=1)
        self.layer2 = _stage(block, depths[1], 64 * block.expansion, 128, stride=2)
        self.layer3 = _stage(block, depths[2], 128 * block.expansion, 256, stride=2)
        self.layer4 = _stage(block, depths[3], 256 * block.expansion, 512, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, num_classes) of normalised images (N, 3, H, W)."""
        out = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(self.avgpool(out).flatten(1))
        return logits


def resnet18(num_classes: int = 1000) -> ResNet:
    """Return a ResNet-18 with 11.7 million random weights; for `options.model`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """Return a ResNet-50 with 25.6 million random weights; for `options.model`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


def _stage(
    block: type[BasicBlock | Bottleneck], depth: int, inner: int, width: int, *, stride: int
) -> nn.Sequential:
    blocks = [block(inner, width, stride)]
    blocks += [block(width * block.expansion, width, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)
