"""The archives of the tests: handlers of each shape that TorchServe's users write.

`build` makes one with `torch-model-archiver`, where that is installed; else it writes the same.
`handlers/` has the sources, as a user would write them: they import `ts` and know nothing of us.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from tests.harness.archives import write_wheel, write_zip

#: The sources, by the names of their modules.
SOURCES: Final = {path.stem: path for path in (Path(__file__).parent / "handlers").rglob("*.py")}
Format = Literal["default", "tgz", "no-archive"]


@dataclass(frozen=True)
class Archive:
    """What one archive is made of.

    Attributes:
        name: name of the model; the file is `<name>.mar`, or as `file` says.
        handler: as the archiver's `--handler` has it: a file of `handlers/`, or a built-in name.
        version: the archiver's `--version`; without one, the manifest has none.
        model_file: a file of `handlers/` that is the archive's module of the model.
        weights: makes the serialized file at the path that it gets.
        extra: further files of the archive, by name.
        config: text of `model-config.yaml`.
        requirements: text of `requirements.txt`.
        form: format of the archive.
        manifest: whether there is a manifest at all.
        by_hand: whether the archive is written here, as the archiver refuses to make it.
        file: name in the model store, if the model's name does not say it.
    """

    name: str
    handler: str
    version: str = "1.0"
    model_file: str | None = None
    weights: tuple[str, Callable[[Path], None]] | None = None
    extra: Mapping[str, str | Callable[[Path], None]] = field(default_factory=dict)
    config: str | None = None
    requirements: str | None = None
    form: Format = "default"
    manifest: bool = True
    by_hand: bool = False
    file: str | None = None

    @property
    def stored(self) -> str:
        """Its name in the model store."""
        ending = {"default": ".mar", "tgz": ".tar.gz", "no-archive": ""}[self.form]
        return self.file or f"{self.name}{ending}"


def _state_dict(path: Path) -> None:
    import torch

    state = {"fc.weight": [[0.5, -0.25, 1.0], [-1.0, 0.75, 0.125]], "fc.bias": [0.0, 0.5]}
    torch.save({name: torch.tensor(value) for name, value in state.items()}, path)


def _script(path: Path) -> None:
    import torch

    class Doubles(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    with warnings.catch_warnings():
        # TorchScript is deprecated, and old archives have it.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(Doubles().eval(), torch.zeros(1, 3))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path))


def _text_state(path: Path) -> None:
    import torch

    rows = torch.arange(24, dtype=torch.float32).reshape(6, 4).sin()
    state = {"embedding.weight": rows, "fc.weight": rows[:2].cos(), "fc.bias": rows[2, :2]}
    torch.save(state, path)


def _vocabulary(path: Path) -> None:
    import torch

    tokens = ("very", "good", "very good", "bad", "naive", "bad naive", "i", "do", "not", "like",
              "it", "is", "because", "i do", "do not", "not like", "like it", "it is")  # fmt: skip
    torch.save({token: n % 6 for n, token in enumerate(tokens)}, path)


def _wheel(path: Path) -> None:
    write_wheel(path.parent, "compat_needed", 'WORD = "installed"\n')


MODEL_MODULE: Final = """\
class {name}:
    def says(self):
        return "{says}"
"""
YAML: Final = """\
minWorkers: 1
maxWorkers: 1
batchSize: 3
maxBatchDelay: 50
responseTimeout: 777
startupTimeout: 888
unknownKey: {kept: [1, 2.5, yes, null]}
handler:
  greeting: hello
  profile: true
"""
ZEROS: Final = """\
batchSize: 0
maxBatchDelay: 0
responseTimeout: 0
startupTimeout: 0
"""
NO_LEAST: Final = """\
minWorkers: 0
maxWorkers: 2
responseTimeout: 777
startupTimeout: 888
"""
MICRO_BATCHING: Final = """\
batchSize: 4
maxBatchDelay: 20
micro_batching:
  micro_batch_size: 2
  parallelism: {preprocess: 2, inference: 1, postprocess: 2}
"""

BATCHES: Final = """\
batchSize: 2
maxBatchDelay: 20
responseTimeout: 300
startupTimeout: 300
"""
STEPS: Final = BATCHES + "continuousBatching: true\n"
SEQUENCES: Final = BATCHES + "sequenceBatching: true\n"
#: A sequence lives as long as a test.
LONG: Final = SEQUENCES + "sequenceMaxIdleMSec: 600000\n"
SESSIONS: Final = LONG + "continuousBatching: true\nhandler: {cache: {capacity: 4}}\n"

NAMES: Final = json.dumps({str(n): [f"n{n}", f"name {n}"] for n in range(6)})
#: TorchServe's handlers of images import torchvision, which is not among our packages.
TORCHVISION: Final = {"torchvision.py": SOURCES["torchvision"].read_text()}

ARCHIVES: Final = {
    one.name: one
    for one in (
        Archive("noop", "noop_class.py", "1.11"),
        Archive("noop_function", "noop_function.py", "1.0"),
        Archive("entry_point", "entry_point:entry_point_function_name"),
        Archive(
            "entry_point_file", "entry_point.py:entry_point_function_name", "1.1", by_hand=True
        ),
        Archive("handler_name", "noop_class"),
        Archive("no_archive", "noop_function.py", "1.11", form="no-archive"),
        Archive("tgz", "noop_class.py", "1.11", form="tgz"),
        Archive("no_manifest", "noop_function.py", manifest=False, by_hand=True),
        Archive("echo", "echo.py"),
        Archive("text_of_data", "text_of_data.py"),
        Archive("fields", "fields.py"),
        Archive("returns", "returns.py"),
        Archive("raises", "raises.py"),
        Archive("sized", "sized.py"),
        Archive("rows", "rows.py"),
        Archive("tensors", "tensors.py"),
        *(
            Archive(name, "cannot_load.py", config=f"handler: {{raises: {error}}}\n")
            for name, error in (
                ("init_error", "value"),
                ("init_runtime_error", "runtime"),
                ("memory_error_load", "memory"),
            )
        ),
        Archive("import_error", "import_error.py"),
        Archive("two_classes", "two_classes.py"),
        Archive("held", "held.py"),
        Archive("ticketed", "held.py", config="useJobTicket: true\n"),
        Archive(
            "counted",
            "counted.py",
            config=LONG + "maxNumSequence: 2\nmaxSequenceJobQueueSize: 5\n",
        ),
        Archive("crowded", "counted.py", config=LONG),
        Archive("silent", "counted.py", config=SEQUENCES + "sequenceMaxIdleMSec: 100\n"),
        Archive("timed", "counted.py", config=LONG + "sequenceTimeoutMSec: 100\n"),
        Archive("endless", "counted.py", config=SEQUENCES),
        Archive("not_sequences", "counted.py", config=BATCHES + "sequenceMaxIdleMSec: 100\n"),
        Archive("session", "session.py", config=SESSIONS),
        Archive("sleeps", "sleeps.py", config="responseTimeout: 2\n"),
        Archive("crash", "crash.py"),
        Archive("batch_sizes", "batch_sizes.py"),
        Archive("customized", "customized.py"),
        Archive("explained", "explained.py"),
        Archive("response_headers", "response_headers.py"),
        Archive("statuses", "statuses.py"),
        Archive("request_headers", "request_headers.py"),
        Archive("all_headers", "all_headers.py"),
        Archive("context_info", "context_info.py", "2.5"),
        Archive("relative_files", "relative_files.py", extra={"labels.txt": "cat\ndog\n"}),
        Archive(
            "first_model",
            "imports_model.py",
            extra={"model.py": MODEL_MODULE.format(name="First", says="first")},
        ),
        Archive(
            "second_model",
            "imports_model.py",
            extra={"model.py": MODEL_MODULE.format(name="Second", says="second")},
        ),
        Archive("micro_batched", "micro_batched.py", config=MICRO_BATCHING),
        Archive(
            "eager",
            "tensor_handler.py",
            model_file="linear_model.py",
            weights=("linear.pth", _state_dict),
        ),
        Archive("script", "tensor_handler.py", weights=("doubles.pt", _script)),
        Archive(
            "labelled",
            "labelled.py",
            model_file="linear_model.py",
            weights=("linear.pth", _state_dict),
            extra={"index_to_name.json": json.dumps({"0": "cat", "1": ["n02084071", "dog"]})},
        ),
        *(
            Archive(
                f"{kind}_{task}",
                f"{kind}_{task}",
                model_file=f"{task}_model.py",
                extra={**TORCHVISION, "index_to_name.json": NAMES},
            )
            for kind, task in (
                ("image", "classifier"),
                ("image", "segmenter"),
                ("object", "detector"),
            )
        ),
        Archive(
            "few_labels",
            "image_classifier",
            model_file="classifier_model.py",
            extra={**TORCHVISION, "index_to_name.json": '{"0": "red"}'},
        ),
        Archive(
            "few_classes",
            "image_classifier",
            model_file="few_classes_model.py",
            extra=TORCHVISION,
        ),
        Archive(
            "text_classifier",
            "text_classifier",
            model_file="text_model.py",
            weights=("text.pth", _text_state),
            extra={"source_vocab.pt": _vocabulary, "index_to_name.json": NAMES},
        ),
        Archive("custom_metrics", "custom_metrics.py"),
        Archive(
            "needs_package",
            "needs_package.py",
            extra={"compat_needed-1.0-py3-none-any.whl": _wheel},
            requirements="--no-index\n--find-links .\ncompat-needed==1.0\n",
        ),
        Archive(
            "needs_missing_package",
            "noop_function.py",
            requirements="--no-index\na-package-that-nobody-has==1.0\n",
        ),
        Archive("yaml_config", "yaml_config.py", config=YAML),
        Archive("zeros", "echo.py", config=ZEROS),
        Archive("no_least", "echo.py", config=NO_LEAST),
        Archive("prints", "prints.py"),
        Archive("async_handle", "async_handle.py", config="asyncCommunication: true\n"),
        Archive("pieces", "pieces.py"),
        Archive("stepped", "stepped.py", config=STEPS),
        Archive("client_timeout", "sleeps.py", config="clientTimeoutInMills: 500\nbatchSize: 1\n"),
    )
}
#: The second version of `noop`, in a file of its own.
NOOP_2: Final = Archive("noop", "second_version.py", "1.2.1", file="noop_v2.mar")


def build(archive: Archive, store: Path, archiver: Path | None = None) -> Path:
    """Make an archive in a model store.

    Args:
        archive: What it is made of.
        store: The model store.
        archiver: The command `torch-model-archiver`; without it, the archive is written here.

    Returns:
        The path of the archive: a file, or a folder.
    """
    with tempfile.TemporaryDirectory() as sources:
        parts = _gather(archive, Path(sources))
        made = Path(sources) / "made"
        made.mkdir()
        if archiver is None or archive.by_hand:
            _write(archive, parts, made)
        else:
            _run(archiver, archive, parts, made)
        (found,) = made.iterdir()
        path = store / archive.stored
        shutil.move(str(found), path)
    return path


def build_all(store: Path, names: Iterable[str] = ARCHIVES, archiver: Path | None = None) -> None:
    """Make archives, by name, in a model store."""
    for name in names:
        build(ARCHIVES[name], store, archiver)


@dataclass(frozen=True)
class _Parts:
    """The files of an archive, by their role."""

    handler: Path | None
    model_file: Path | None
    weights: Path | None
    extra: list[Path]
    config: Path | None
    requirements: Path | None

    @property
    def files(self) -> list[Path]:
        """All of them."""
        named = (self.handler, self.model_file, self.weights, self.config, self.requirements)
        return [*(path for path in named if path is not None), *self.extra]


def _gather(archive: Archive, folder: Path) -> _Parts:
    def written(name: str, content: str | Callable[[Path], None] | None) -> Path | None:
        if content is None:
            return None
        path = folder / name
        if isinstance(content, str):
            path.write_text(content)
        else:
            content(path)
        return path

    module = archive.handler.partition(":")[0].removesuffix(".py")
    extra = [written(name, content) for name, content in archive.extra.items()]
    return _Parts(
        handler=SOURCES.get(module),
        model_file=SOURCES[archive.model_file.removesuffix(".py")] if archive.model_file else None,
        weights=written(*archive.weights) if archive.weights else None,
        extra=[path for path in extra if path],
        config=written("model-config.yaml", archive.config),
        requirements=written("requirements.txt", archive.requirements),
    )


def _run(archiver: Path, archive: Archive, parts: _Parts, into: Path) -> None:
    handler = archive.handler
    if parts.handler is not None:
        handler = str(parts.handler.parent / archive.handler)
    options = {
        "--model-name": archive.name,
        "--version": archive.version,
        "--handler": handler,
        "--model-file": parts.model_file,
        "--serialized-file": parts.weights,
        "--extra-files": ",".join(map(str, parts.extra)),
        "--config-file": parts.config,
        "--requirements-file": parts.requirements,
        "--archive-format": archive.form,
        "--export-path": into,
    }
    command = [str(archiver)]
    for option, value in options.items():
        if value:
            command += [option, str(value)]
    # The archiver gathers files in a folder named after the model, below the temporary folder.
    env = {**os.environ, "TMPDIR": str(into.parent)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


def _manifest(archive: Archive, parts: _Parts) -> str:
    model: dict[str, str] = {"modelName": archive.name}
    if parts.weights:
        model["serializedFile"] = parts.weights.name
    model["handler"] = archive.handler
    if parts.model_file:
        model["modelFile"] = parts.model_file.name
    model["modelVersion"] = archive.version
    if parts.requirements:
        model["requirementsFile"] = parts.requirements.name
    if parts.config:
        model["configFile"] = parts.config.name
    manifest = {
        "createdOn": "01/02/2026 03:04:05",
        "runtime": "python",
        "model": model,
        "archiverVersion": "0.12.0",
    }
    return json.dumps(manifest, indent=2)


def _write(archive: Archive, parts: _Parts, into: Path) -> None:
    folder = into / archive.name
    folder.mkdir()
    for path in parts.files:
        shutil.copy(path, folder)
    if archive.manifest:
        (folder / "MAR-INF").mkdir()
        (folder / "MAR-INF/MANIFEST.json").write_text(_manifest(archive, parts))
    if archive.form == "no-archive":
        return
    if archive.form == "tgz":
        with tarfile.open(into / archive.stored, "w:gz") as tar:
            tar.add(folder, arcname=archive.name)
    else:
        with zipfile.ZipFile(into / archive.stored, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    file.write(path, path.relative_to(folder))
    shutil.rmtree(folder)


def build_broken(store: Path) -> None:
    """Make archives that no server can load, each broken in another way."""
    (store / "not_a_zip.mar").write_bytes(b"this is no archive")
    whole = (store / ARCHIVES["echo"].stored).read_bytes()
    (store / "cut.mar").write_bytes(whole[: len(whole) // 2])
    manifest = '{"runtime": "python", "model": {"modelName": "%s", "modelVersion": "1.0"%s}}'
    write_zip(
        store / "slip.mar",
        [
            ("MAR-INF/MANIFEST.json", (manifest % ("slip", ', "handler": "service"')).encode()),
            ("../slipped.py", b"x = 1"),
        ],
    )
    write_zip(store / "bad_manifest.mar", [("MAR-INF/MANIFEST.json", b"{")])
    (store / "bad.tar.gz").write_bytes(b"\x1f\x8bthis is no gzip")
    write_zip(
        store / "nameless.mar",
        [("MAR-INF/MANIFEST.json", b'{"model": {"handler": "service"}}')],
    )
    write_zip(
        store / "handlerless.mar",
        [("MAR-INF/MANIFEST.json", (manifest % ("handlerless", "")).encode())],
    )


if __name__ == "__main__":
    # python -m tests.extensions.torchserve.compat.archives STORE [ARCHIVER] makes them all, for a
    # try by hand.
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    given = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    build_all(target, archiver=given)
    build(NOOP_2, target, given)
    build_broken(target)
