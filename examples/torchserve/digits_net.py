"""The module of the model, as an archive's `modelFile` has it: one class without arguments."""

from torch import nn


class DigitsNet(nn.Sequential):
    """Logits (N, 10) of images (N, 1, 8, 8) in 0..1."""

    def __init__(self):
        body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(),
            nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.3),
        )  # fmt: skip
        super().__init__()
        self.body = body
        self.head = nn.Linear(48 * 2 * 2, 10)
