"""Write digits.mar into a model store, as `torch-model-archiver` would.

    python examples/torchserve/make_archive.py model_store

The weights are those of the demo's model.
"""

import io
import json
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
WEIGHTS = HERE.parents[1] / "handlers/weights/digits.safetensors"
MANIFEST = {
    "runtime": "python",
    "archiverVersion": "0.12.0",
    "model": {
        "modelName": "digits",
        "modelVersion": "1.0",
        "handler": "digits_handler.py",
        "modelFile": "digits_net.py",
        "serializedFile": "digits.pth",
        "configFile": "model-config.yaml",
    },
}
CONFIG = """\
minWorkers: 1
maxWorkers: 1
batchSize: 8
maxBatchDelay: 20
"""


def main(store: Path) -> Path:
    """Write the archive; return its path."""
    store.mkdir(parents=True, exist_ok=True)
    weights = io.BytesIO()
    torch.save(load_file(WEIGHTS), weights)
    archive = store / "digits.mar"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps(MANIFEST, indent=2))
        for name in ("digits_handler.py", "digits_net.py"):
            file.write(HERE / name, name)
        file.writestr("digits.pth", weights.getvalue())
        file.writestr("model-config.yaml", CONFIG)
    return archive


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
