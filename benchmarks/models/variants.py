"""The variants of two models on this machine: `python -m benchmarks.models.variants [--write]`.

The trained digits see the 360 images that they were not trained on. The last layer of ResNet-50 is
trained on cuts of two photos by `examples/train_resnet50.py` first, which takes two minutes; the
model sees other cuts. An encoder of BERT's shape has random weights, so its figures are about
time. `headrace optimize` runs them, each variant in a process of its own, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.common.tables import Table, write_tables
from examples import train_resnet50
from examples.digits_dataset import split, to_png
from extensions.tuning.optimize import page
from extensions.tuning.optimize.report import Comparison
from tests.harness.workers.worker import write_models

#: The folder of the trained ResNet-50.
RESNET: Final = "resnet50-photos"
#: Tokens of each text.
TOKENS: Final = 128
ENCODER: Final = '''
import torch
from torch import nn

from headrace import Handler
from headrace.handler import Exportable


class Bert(nn.Module):
    """Embeddings, twelve layers of 768, a class for each text."""

    def __init__(self, layers, tokens=30000):
        super().__init__()
        self.embedding = nn.Embedding(tokens, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(768, 8)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids))[:, 0])


class Encoder(Handler):
    def initialize(self, context):
        super().initialize(context)
        torch.manual_seed(0)
        self.model = Bert(**context.options).eval().to(context.device)
        self.forward = self.model

    def exportable(self):
        return Exportable(self.model, self.use, lambda logits: logits)

    def use(self, forward):
        self.forward = forward

    def example_input(self):
        return list(range(1, 129))

    def inference(self, items):
        with torch.inference_mode():
            return self.forward(torch.tensor(items)).softmax(1).tolist()
'''
#: Each model with its variants.
RUNS: Final = {
    "digits": "onnxruntime:int8,openvino,openvino:int8",
    "resnet50": "compile,aot,torchscript,onnxruntime,onnxruntime:int8,openvino,openvino:int8",
    "encoder": "aot,onnxruntime,onnxruntime:int8,openvino,openvino:int8",
}
TEXTS: Final = 200


def write_inputs(folder: Path) -> None:
    """Write the inputs of digits and of the encoder into folders of their names."""
    for model in ("digits", "encoder"):
        (folder / model).mkdir()
    _, held_out = split()
    for n, image in enumerate(held_out.images):
        (folder / "digits" / f"{n:04}.png").write_bytes(to_png(image))
    random = np.random.default_rng(0)
    for n in range(TEXTS):
        ids = random.integers(1, 30_000, TOKENS).tolist()
        (folder / "encoder" / f"{n:04}.json").write_text(json.dumps(ids))


def compare(folder: Path, model: str, rounds: int) -> Comparison:
    """Return the comparison of one model."""
    document = folder / f"{model}.json"
    inputs = folder / RESNET / "held_out" if model == "resnet50" else folder / model
    command = [
        sys.executable, "-m", "headrace", "optimize", model, "--variants", RUNS[model],
        "--rounds", str(rounds), "--json", str(document), "--models", str(folder / "models.yaml"),
        "--input", str(inputs),
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    return msgspec.json.decode(document.read_bytes(), type=Comparison)


def main() -> None:
    """Print the tables; write them into the document with --write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", default="digits,resnet50,encoder")
    parser.add_argument("--write", action="store_true", help="put them into docs/performance.md")
    options = parser.parse_args()
    tables = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "encoder.py").write_text(ENCODER)
        write_models(
            folder,
            digits={"handler": "digits", "max_batch_size": 8},
            resnet50={"handler": "image_classifier", "max_batch_size": 8,
                      "weights": f"{RESNET}/{train_resnet50.WEIGHTS}",
                      "options": train_resnet50.OPTIONS},
            encoder={"handler": "encoder.py:Encoder", "max_batch_size": 8,
                     "options": {"layers": 12}},
        )  # fmt: skip
        write_inputs(folder)
        wanted = options.models.split(",")
        if "resnet50" in wanted:
            train_resnet50.train_and_write(folder / RESNET)
        for model in RUNS:
            if model in wanted:
                found = compare(folder, model, options.rounds)
                tables.append(_table(found))
                instructions = found.environment["instructions"]
    if options.write:
        write_tables("optimize", f"{instructions}, in turns within one run.", *tables)


def _table(found: Comparison) -> Table:
    columns, rows = page.table(found)
    table = Table(found.model, *(one.lstrip(">") for one in columns[1:]))
    for row in rows:
        table.add(*row)
    return table


if __name__ == "__main__":
    main()
