"""The part of torchvision that TorchServe's handlers of images import, for hosts without it."""

import numpy as np
import torch

__version__ = "0.20.0"


class transforms:
    class Compose:
        def __init__(self, steps):
            self.steps = steps

        def __call__(self, image):
            for step in self.steps:
                image = step(image)
            return image

    class Resize:
        def __init__(self, size):
            self.size = size

        def __call__(self, image):
            width, height = image.size
            if width <= height:
                return image.resize((self.size, int(self.size * height / width)), 2)
            return image.resize((int(self.size * width / height), self.size), 2)

    class CenterCrop:
        def __init__(self, size):
            self.size = size

        def __call__(self, image):
            left = round((image.width - self.size) / 2)
            top = round((image.height - self.size) / 2)
            return image.crop((left, top, left + self.size, top + self.size))

    class ToTensor:
        def __call__(self, image):
            tones = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
            return tones.to(torch.float32).div(255)

    class Normalize:
        def __init__(self, mean, std):
            self.mean, self.std = (torch.tensor(one).view(-1, 1, 1) for one in (mean, std))

        def __call__(self, image):
            return image.clone().sub_(self.mean).div_(self.std)
