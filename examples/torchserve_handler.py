"""Run an unchanged TorchServe handler in Headrace, from an unpacked archive.

In the models file, after `unzip densenet.mar -d densenet`:

    handler: torchserve_handler.py
    options: {archive: densenet}

A handler that imports from `ts` also needs `pip install torchserve` (no Java). docs/torchserve.md
lists what is not supported.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from headrace import Context, Handler, Response
from headrace.errors import ConfigError, HandlerError


class TorchServe(Handler):
    """Calls `handle(data, context)` once per batch with the rows that TorchServe would pass."""

    def initialize(self, context: Context) -> None:
        """Import the handler from the archive and let it load its model."""
        super().initialize(context)
        folder = (context.model_dir / str(context.options.get("archive", "."))).resolve()
        manifest = read_manifest(folder)
        self.ts = TsContext(context, folder, manifest)
        # Handlers open files of their folder by name.
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        self.handle = entry(str(manifest["model"]["handler"]), folder, self.ts)

    def inference(self, items: list[Any]) -> list[Any]:
        """Run the handler, which calls its own preprocess, inference and postprocess."""
        self.ts.begin(self.context)
        results = self.handle([{"body": as_row(item)} for item in items], self.ts)
        if not isinstance(results, list) or len(results) != len(items):
            raise HandlerError(f"handle must return a list of {len(items)}, one for each row")
        return [self.ts.answer(n, result) for n, result in enumerate(results)]


class TsContext(SimpleNamespace):
    """TorchServe's context for handlers; handlers may add attributes."""

    def __init__(self, context: Context, folder: Path, manifest: dict[str, Any]) -> None:
        config = manifest["model"].get("configFile")
        gpu = context.device.partition(":")[2] or "0" if "cuda" in context.device else None
        super().__init__(
            model_name=context.model_name,
            manifest=manifest,
            model_yaml_config=yaml.safe_load((folder / config).read_text()) if config else {},
            system_properties={
                "model_dir": str(folder),
                "gpu_id": None if gpu is None else int(gpu),
                "batch_size": context.max_batch_size,
                "server_name": "Headrace",
                "limit_max_image_pixels": True,
            },
            metrics=Ignored(),
        )

    def begin(self, context: Context) -> None:
        """Set the ids and the inputs of a new batch, and reset the responses."""
        self.request_ids = dict(enumerate(context.request_ids))
        self._sent = [
            {"content-type": kind, **headers}
            for kind, headers in zip(context.content_types, context.headers, strict=True)
        ]
        self._types: dict[int, str] = {}
        self._statuses: dict[int, tuple[int, str]] = {}

    def get_request_id(self, idx: int = 0) -> str | None:
        """Return the job's id."""
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> str | None:
        """Return the content type, or a header that the models file names for the model."""
        return self.get_all_request_header(idx).get(key.lower())

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        """Likewise."""
        return self._sent[idx] if idx < len(self._sent) else {}

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Set the content type of a result."""
        self._types[idx] = value

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Ignore a header; a result has only a content type."""
        if key.lower() == "content-type":
            self._types[idx] = value

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set a row's status; from 400 its job fails with the result as the message."""
        self._statuses[idx] = (code, phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Set the status of all rows."""
        self._statuses = dict.fromkeys(self.request_ids, (code, phrase))

    def answer(self, idx: int, result: Any) -> Any:
        """Return a result for Headrace, or the error of its status."""
        code, phrase = self._statuses.get(idx, (200, ""))
        if code >= 400:
            said = result.decode("utf-8", "replace") if isinstance(result, bytes) else str(result)
            return HandlerError(f"{code} {phrase}: {said}".replace(" :", ":"))
        kind = self._types.get(idx)
        if kind is None or not isinstance(result, (str, bytes, bytearray)):
            return bytes(result) if isinstance(result, bytearray) else result
        return Response(result.encode() if isinstance(result, str) else bytes(result), kind)


class Ignored:
    """A replacement for TorchServe's metrics; Headrace has its own at `/metrics`."""

    def __getattr__(self, name: str) -> "Ignored":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> "Ignored":
        """Ignore the value."""
        return self


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return `MAR-INF/MANIFEST.json`, which has the name of the handler."""
    path = folder / "MAR-INF" / "MANIFEST.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        manifest["model"]["handler"] += ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read, or has no handler: {error}",
            hint="set options.archive to the folder of the unzipped .mar",
        ) from error
    return manifest


def loaded(named: str, folder: Path) -> Any:
    """Import the handler's module: a file of the archive, else an installed module."""
    stem = Path(named).name.removesuffix(".py")
    path = folder / f"{stem}.py"
    if path.is_file():
        # A unique name: two archives may have files with the same name.
        digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
        spec = importlib.util.spec_from_file_location(f"{stem}_{digest}", path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} cannot be imported")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(stem)
    except ModuleNotFoundError as error:
        if error.name != stem:
            raise
        # A handler of TorchServe, such as image_classifier.
        return importlib.import_module(f"ts.torch_handler.{stem}")


def entry(named: str, folder: Path, context: TsContext) -> Any:
    """Return the module's function, else `handle` of its only class with its model loaded."""
    name, _, function = named.partition(":")
    module = loaded(name, folder)
    found = getattr(module, function or "handle", None)
    if found is not None:
        found(None, context)
        return found
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise ConfigError(f"{module.__file__} has {len(own)} classes and no {function or 'handle'}")
    service = own[0]()
    service.initialize(context)
    return service.handle


def as_row(value: Any) -> Any:
    """Return JSON and text unchanged, and other inputs as a bytearray, like TorchServe."""
    return bytearray(value) if isinstance(value, bytes) else value
