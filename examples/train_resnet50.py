"""Fit a ResNet-50 to parts of photos, to measure forms of a large model; two minutes on two cores.

    PYTHONPATH=. python examples/train_resnet50.py resnet50-photos
    cd resnet50-photos && headrace optimize resnet50 --input held_out

With random weights all classes get nearly equal scores, and a small error changes the best one. A
trained classifier has margins. Here only the last layer is trained, by logistic regression: it
names the part of two photos from which a cut is, one of twelve. The convolutions keep the random
weights of seed 0. The batch norms get the statistics of the cuts. The last one of each block gets a
small weight, as trained networks have. With the weight 1, fifty random layers would make all images
alike.

The folder gets the weights, a models file, `inputs` (cuts for training) and `held_out` (other cuts
of the same photos). Needs the extra `dev` (the photos come with scikit-learn). Prints the accuracy
on the held-out cuts.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from handlers.image_classifier import ImageClassifier
from headrace.handler import Context

#: Parts of each photo, and the sides of cuts in pixels.
ROWS, COLUMNS = 2, 3
SIDES_PX = (120, 200)
CLASSES = 2 * ROWS * COLUMNS
TRAINING, HELD_OUT = 480, 240
STATISTICS = 128
#: The weight of the last batch norm of each block.
BLOCK_WEIGHT = 0.2
BATCH = 32
WEIGHTS = "resnet50.safetensors"
OPTIONS: dict[str, Any] = {
    "model": "handlers.resnet:resnet50",
    "model_options": {"num_classes": CLASSES},
}
MODELS_FILE = f"""\
models:
  resnet50:
    handler: image_classifier
    max_batch_size: 8
    weights: {WEIGHTS}
    options: {{model: "handlers.resnet:resnet50", model_options: {{num_classes: {CLASSES}}}}}
"""


@dataclass(frozen=True)
class Cuts:
    """Cuts of the photos as JPEG, with the number of the part from which each is."""

    jpegs: list[bytes]
    labels: NDArray[np.int64]


def main() -> None:
    """Read the arguments, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("resnet50-photos"))
    train_and_write(parser.parse_args().folder)


def train_and_write(folder: Path) -> None:
    """Train the last layer, write the folder and print the accuracy."""
    training, held_out = cuts(TRAINING, seed=0), cuts(HELD_OUT, seed=1)
    handler = handler_of(folder)
    measure_statistics(handler, training.jpegs[:STATISTICS])
    fit_last_layer(handler, training)
    folder.mkdir(parents=True, exist_ok=True)
    model: nn.Module = handler.model
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    (folder / "models.yaml").write_text(MODELS_FILE)
    write_images(folder / "inputs", training)
    write_images(folder / "held_out", held_out)
    right = np.array(best_classes(handler, held_out.jpegs)) == held_out.labels
    print(f"held-out accuracy: {right.mean():.4f}")


def cuts(count: int, *, seed: int) -> Cuts:
    """Return random cuts, the same number of each part; the same ones for the same seed."""
    random = np.random.default_rng(seed)
    photos = load_sample_images().images
    jpegs, labels = [], []
    for n in range(count):
        label = n % CLASSES
        photo = photos[label // (ROWS * COLUMNS)]
        row, column = divmod(label % (ROWS * COLUMNS), COLUMNS)
        height, width = photo.shape[0] // ROWS, photo.shape[1] // COLUMNS
        side = int(random.integers(*SIDES_PX))
        top = row * height + int(random.integers(0, height - side))
        left = column * width + int(random.integers(0, width - side))
        buffer = io.BytesIO()
        Image.fromarray(photo[top : top + side, left : left + side]).save(buffer, "JPEG")
        jpegs.append(buffer.getvalue())
        labels.append(label)
    return Cuts(jpegs, np.array(labels))


def handler_of(folder: Path) -> ImageClassifier:
    """Return the handler with random weights, as its seed makes them."""
    handler = ImageClassifier()
    handler.initialize(Context("resnet50", "1.0", "cpu", folder, options=OPTIONS))
    return handler


def best_classes(handler: ImageClassifier, jpegs: Sequence[bytes]) -> list[int]:
    """Run images through the handler; return the best class of each."""
    found: list[int] = []
    for start in range(0, len(jpegs), BATCH):
        items = handler.preprocess(list(jpegs[start : start + BATCH]))
        results = handler.postprocess(handler.inference(items))
        found += [result["classes"][0]["index"] for result in results]
    return found


def measure_statistics(handler: ImageClassifier, jpegs: Sequence[bytes]) -> None:
    """Give the batch norms the mean and the spread of some images."""
    model: nn.Module = handler.model
    for name, part in model.named_modules():
        if name.endswith(".bn3"):
            nn.init.constant_(part.weight, BLOCK_WEIGHT)
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None  # the mean of all batches
    model.train()
    best_classes(handler, jpegs)
    model.eval()


def fit_last_layer(handler: ImageClassifier, training: Cuts) -> None:
    """Fit the last layer to what it gets for the images."""
    rows: list[Tensor] = []
    keep: Callable[..., None] = lambda _, args: rows.append(args[0].clone())  # noqa: E731
    last: nn.Linear = handler.model.fc
    hook = last.register_forward_pre_hook(keep)
    best_classes(handler, training.jpegs)
    hook.remove()
    features = torch.cat(rows)
    mean, std = features.mean(dim=0), features.std(dim=0) + 1e-6
    fitted = LogisticRegression(C=0.01, max_iter=500)
    fitted.fit(((features - mean) / std).numpy(), training.labels)
    # The layer gets the features as they are.
    weight = torch.from_numpy(fitted.coef_).float() / std
    bias = torch.from_numpy(fitted.intercept_).float() - weight @ mean
    with torch.no_grad():
        last.weight.copy_(weight)
        last.bias.copy_(bias)


def write_images(folder: Path, written: Cuts) -> None:
    """Write images, named <class>_<number>.jpg."""
    folder.mkdir(exist_ok=True)
    for n, (jpeg, label) in enumerate(zip(written.jpegs, written.labels, strict=True)):
        (folder / f"{label:02}_{n:04}.jpg").write_bytes(jpeg)


if __name__ == "__main__":
    main()
