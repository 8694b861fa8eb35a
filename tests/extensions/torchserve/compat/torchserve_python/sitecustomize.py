"""What each Python process of TorchServe runs first, so that it imports no more than a test needs.

A worker imports torch to see whether a reply is a tensor, which takes longer than all else that it
does. No reply is one before a handler imports torch. TorchServe's handlers import OpenVINO where it
is installed: it is for Headrace's tests, and TorchServe has no use of it here.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: The only module of a worker that imports torch.
IMPORTS_TORCH = "ts.protocol.otf_message_handler"


class Torch(ModuleType):
    """What that module has as `torch`; the handlers import the real one."""

    def __getattr__(self, name: str) -> Any:
        if name == "Tensor" and "torch" not in sys.modules:
            return ()  # nothing is an instance of it
        return getattr(importlib.import_module("torch"), name)


class Finder:
    """Finds that module, and gives it the other `torch` when it is imported."""

    def find_spec(self, name: str, path: Any, _: object = None) -> ModuleSpec | None:
        if name != IMPORTS_TORCH or "torch" in sys.modules:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.modules["torch"] = Torch("torch")
            try:
                run(module)
            finally:
                del sys.modules["torch"]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())
sys.modules["openvino"] = None  # type: ignore[assignment]
