"""The keys of the cache: what a built variant, and the verdict on it, depend on."""

from __future__ import annotations

import hashlib
import inspect
import platform
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import nn

from headrace.config.model.optimize import EXTRAS, Optimize

_KEY_CHARS: Final = 32
#: Names of distributions with the versions that count, besides torch, by backend.
_DISTRIBUTIONS: Final = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnx", "onnxscript"),
    "openvino": ("openvino", "nncf"),
    "tensorrt": ("torch-tensorrt", "tensorrt"),
}
_PLAIN: Final = (bool, int, float, str, tuple, type(None))


def build_key(wanted: Optimize, module: nn.Module, device: str, settings: Any) -> str:
    """Return the name of a build; `settings` decide over the module's inputs and sizes, too."""
    parts = (
        b"3",  # the version of this format
        *(str(one).encode() for one in (wanted.backend, wanted.precision, wanted.mode)),
        msgspec.json.encode(settings, order="sorted"),
        "\n".join(_versions(wanted.backend)).encode(),
        capability(device).encode(),
        # Only int8 is made of the calibration inputs.
        folder_digest(wanted.calibrate).encode() if wanted.precision == "int8" else b"",
        *_code(module),
        *_weights(module),
    )
    return digest(parts)


def verdict_name(wanted: Optimize, threads: int) -> str:
    """Return the name of the file with the verdict on a build."""
    parts = (str(wanted.error_limit), str(threads), folder_digest(wanted.calibrate))
    return f"verdict-{digest(part.encode() for part in parts)}.json"


def digest(parts: Iterable[Any]) -> str:
    """Return the digest of byte strings, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        view = memoryview(part).cast("B")
        found.update(len(view).to_bytes(8, "little"))
        found.update(view)
    return found.hexdigest()[:_KEY_CHARS]


def capability(device: str) -> str:
    """Return what the code for a device depends on: the CPU's instructions, or the GPU's kind."""
    if device == "cpu":
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_cpu_flags()}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} {major}.{minor} {torch.version.cuda}"


@cache
def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _versions(backend: str) -> list[str]:
    found = [f"python {sys.version}", f"torch {torch.__version__}"]
    names = _DISTRIBUTIONS.get(backend, ()) if backend in EXTRAS else ()
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


@cache
def folder_digest(folder: str | None) -> str:
    """Return the digest of the files of a folder, or of one file; "" without one."""
    if folder is None:
        return ""
    given = Path(folder)
    found = [given] if given.is_file() else given.rglob("*")
    files = sorted(path for path in found if path.is_file())
    return digest(part for path in files for part in (path.name.encode(), path.read_bytes()))


def _code(module: nn.Module) -> Iterable[bytes]:
    """Yield what a module computes besides its weights: its code, and the values of its parts."""
    kinds: dict[type, None] = {}
    for name, part in module.named_modules():
        kinds[type(part)] = None
        plain = {
            key: value
            for key, value in vars(part).items()
            if isinstance(value, _PLAIN) and not key.startswith("_")
        }
        yield f"{name} {type(part).__qualname__} {sorted(plain.items())!r}".encode()
        yield part.extra_repr().encode()
    for kind in kinds:
        if kind.__module__.partition(".")[0] != "torch":
            yield _source(kind)
    if isinstance(module, torch.fx.GraphModule):
        yield module.code.encode()


def _source(kind: type) -> bytes:
    try:
        return Path(inspect.getfile(kind)).read_bytes()
    except (OSError, TypeError):
        return kind.__qualname__.encode()


def _weights(module: nn.Module) -> Iterable[Any]:
    named = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in sorted(named, key=lambda one: one[0]):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
        plain = tensor.detach().contiguous().reshape(-1).cpu()
        yield plain.view(torch.uint8).numpy() if plain.numel() else b""
