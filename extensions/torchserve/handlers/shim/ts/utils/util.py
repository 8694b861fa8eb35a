"""Helpers of handlers: label mappings, classes of a module, backends of `torch.compile`."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml
from typing_extensions import override

logger = logging.getLogger(__name__)

#: Tags and character references of HTML, which text handlers remove.
CLEANUP_REGEX: Final = re.compile(r"<.*?>|&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")


class PT2Backend(enum.StrEnum):
    """The backends of `torch.compile` that a configuration may name."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


class PredictionException(Exception):
    """Makes the server answer the request with this code."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    @override
    def __str__(self) -> str:
        return f"{self.message} : {self.error_code}"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """Return the classes that a module defines itself, perhaps only those below a class."""
    return [
        found
        for _, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__
        and (parent_class is None or issubclass(found, parent_class))
    ]


def check_valid_pt2_backend(backend: str) -> bool:
    """Return whether a backend of `torch.compile` is a known one; log it otherwise."""
    if backend in {one.value for one in PT2Backend}:
        return True
    logger.warning("%s is not a known backend of torch.compile", backend)
    return False


def load_label_mapping(mapping_file_path: str | Path) -> Any:
    """Return the labels of an `index_to_name.json`; None if the file does not exist.

    Raises:
        TypeError: it is neither an object nor a list, or a label is no text.
    """
    path = Path(mapping_file_path)
    if not path.is_file():
        logger.warning("there is no file %s, so results have no labels", path)
        return None
    mapping = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(mapping, (dict, list)):
        raise TypeError(f"{path}: expected an object with a label for each index")
    # An older form has one member with the labels inside.
    if isinstance(mapping, dict) and "object_type_names" in mapping:
        mapping = {str(n): label for n, label in enumerate(mapping["object_type_names"])}
    if not isinstance(mapping, dict):
        raise TypeError(f"{path}: expected an object with a label for each index, got a list")
    for key, label in mapping.items():
        given = label[-1] if isinstance(label, list) and label else label
        if not isinstance(given, str):
            raise TypeError(f"{path}: the label of {key} is {type(given).__name__}, not text")
        mapping[key] = given
    return mapping


def map_class_to_label(
    probs: Iterable[Iterable[float]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Iterable[Iterable[Any]] | None = None,
) -> list[dict[str, float]]:
    """Return one `{label: probability}` for each row of probabilities.

    Args:
        mapping: the label of each class, by the class as text; without it, or without the class,
            the label is the class.
        lbl_classes: the class of each probability; by default their places.

    Raises:
        TypeError: the probabilities are no lists.
    """
    rows: Any = probs.tolist() if hasattr(probs, "tolist") else probs
    if not isinstance(rows, (list, tuple)):
        raise TypeError(f"the probabilities must be lists, not {type(rows).__name__}")
    known = mapping if isinstance(mapping, Mapping) else {}
    classes = map(range, map(len, rows)) if lbl_classes is None else lbl_classes
    return [
        {known.get(str(one), str(one)): value for one, value in zip(of_row, row, strict=False)}
        for of_row, row in zip(classes, rows, strict=False)
    ]


def get_yaml_config(yaml_file_path: str | Path) -> dict[str, Any]:
    """Return the content of a YAML file."""
    config = yaml.safe_load(Path(yaml_file_path).read_text(encoding="utf-8"))
    return config if isinstance(config, dict) else {}


def deprecated(
    version: str, replacement: str = "", klass: type[Warning] = PendingDeprecationWarning
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function that warns at each call, with what to use instead."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            instead = f"; use {replacement}" if replacement else ""
            text = f"{function.__name__} is deprecated since TorchServe {version}{instead}"
            warnings.warn(text, klass, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return mark
