"""Pack the two models as archives of TorchServe, under the names that Animated Drawings uses.

python examples/animated_drawings/archives.py model_store headrace torchserve --start
--model-store model_store --models all --disable-token-auth
"""

import json
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = {
    "drawn_humanoid_detector": ("torchserve_detector.py", "detector.safetensors"),
    "drawn_humanoid_pose_estimator": ("torchserve_pose.py", "pose.safetensors"),
}
CODE = ("torchserve_detector.py", "torchserve_pose.py", "networks.py", "images.py", "keypoints.py")


def main(store: Path) -> list[Path]:
    """Write the archives; return their paths."""
    store.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (handler, weights) in MODELS.items():
        model = {
            "modelName": name, "modelVersion": "1.0", "serializedFile": weights,
            "handler": handler, "configFile": "model-config.yaml",
        }  # fmt: skip
        manifest = {"runtime": "python", "archiverVersion": "0.12.0", "model": model}
        path = store / f"{name}.mar"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest, indent=2))
            archive.writestr(
                "model-config.yaml",
                "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 8\nmaxBatchDelay: 20\n",
            )
            archive.write(HERE / "weights" / weights, weights)
            for file in CODE:
                archive.write(HERE / file, file)
        paths.append(path)
    return paths


if __name__ == "__main__":
    print(*main(Path(sys.argv[1])), sep="\n")
