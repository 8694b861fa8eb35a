"""The base class of most handlers: it loads the model, and has the steps of a request."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

import torch

from ts.handler_utils.timer import timed
from ts.utils.util import check_valid_pt2_backend, list_classes_from_module, load_label_mapping

logger = logging.getLogger(__name__)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


PROFILER_AVAILABLE: Final = True
PT2_AVAILABLE: Final = True
PT230_AVAILABLE: Final = True
ONNX_AVAILABLE: Final = _installed("onnxruntime")
XLA_AVAILABLE: Final = _installed("torch_xla")
IPEX_AVAILABLE: Final = os.environ.get("TS_IPEX_ENABLE", "false") == "true" and _installed(
    "intel_extension_for_pytorch"
)
#: The module `intel_extension_for_pytorch`, if it is used.
ipex: Any = importlib.import_module("intel_extension_for_pytorch") if IPEX_AVAILABLE else None


def setup_ort_session(model_pt_path: str, map_location: Any) -> Any:
    """Return a session of onnxruntime for a file, on the GPU if the model is there."""
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if str(map_location).startswith("cuda"):
        providers.insert(0, "CUDAExecutionProvider")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(model_pt_path, options, providers=providers)


class BaseHandler:
    """Loads a model, and runs a batch through `preprocess`, `inference` and `postprocess`.

    A class may replace `__init__` without a call of this one, so the class has the defaults.

    Attributes:
        mapping: the labels of `index_to_name.json`; None without the file.
        device: where the model runs.
        model_pt_path: the path of the serialized file; None without one.
        explain: whether the current request asks for an explanation.
        target: the class that is explained.
    """

    model: Any = None
    mapping: Any = None
    device: Any = None
    initialized: bool = False
    context: Any = None
    model_pt_path: str | None = None
    manifest: Any = None
    map_location: Any = None
    explain: bool = False
    target: Any = 0
    model_yaml_config: Any = None

    def __init__(self) -> None:
        self.profiler_args: dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Load the model of the archive.

        Raises:
            RuntimeError: the archive has no weights that can be loaded.
        """
        self.context = context
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        self.manifest = context.manifest
        self._choose_device(context.system_properties.get("gpu_id"))
        model_dir = str(context.system_properties.get("model_dir"))
        model = self.manifest["model"]
        serialized = model.get("serializedFile")
        self.model_pt_path = os.path.join(model_dir, serialized) if serialized else None
        model_file = model.get("modelFile")
        if model_file:
            self.model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
            self.model.to(self.device)
            self.model.eval()
        else:
            self._load_program()
        self._optimize()
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _choose_device(self, gpu_id: Any) -> None:
        if torch.cuda.is_available() and gpu_id is not None:
            self.map_location = "cuda"
            self.device = torch.device(f"cuda:{gpu_id}")
        elif torch.xpu.is_available() and gpu_id is not None:
            self.map_location = "xpu"
            self.device = torch.device(f"xpu:{gpu_id}")
        elif torch.backends.mps.is_available() and gpu_id is not None:
            self.map_location = "mps"
            self.device = torch.device("mps")
        elif XLA_AVAILABLE:
            self.device = importlib.import_module("torch_xla.core.xla_model").xla_device()
        else:
            self.map_location = "cpu"
            self.device = torch.device("cpu")

    def _load_program(self) -> None:
        path = self.model_pt_path or ""
        if path.endswith(".pt"):
            self.model = self._load_torchscript_model(path)
            self.model.eval()
        elif path.endswith(".so"):
            self.model = self._load_torch_export_aot_compile(path)
        elif path.endswith(".onnx"):
            if not ONNX_AVAILABLE:
                raise RuntimeError(
                    f"{path} needs the package onnxruntime; install it where the worker runs"
                )
            self.model = setup_ort_session(path, self.map_location)
        else:
            what = f"its file {path} is not a .pt, .so or .onnx" if path else "it has no file"
            raise RuntimeError(
                f"No model weights could be loaded: {what}, and the manifest names no modelFile"
            )

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        with warnings.catch_warnings():
            # TorchScript is deprecated, and many archives have it.
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(model_pt_path, map_location=self.device)  # type: ignore[no-untyped-call]

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        return torch._export.aot_load(model_so_path, str(self.device))

    def _use_torch_export_aot_compile(self) -> bool:
        section = (self.model_yaml_config or {}).get("pt2")
        export = section.get("export") if isinstance(section, dict) else None
        return isinstance(export, dict) and bool(export.get("aot_compile"))

    def _load_pickled_model(
        self, model_dir: str, model_file: str, model_pt_path: str | None
    ) -> Any:
        """Return the only model class of a file, with its weights."""
        path = Path(model_dir) / model_file
        if not path.is_file():
            raise RuntimeError(f"there is no file {path}, which the manifest names as modelFile")
        module = importlib.import_module(path.stem)
        classes = list_classes_from_module(module)
        if len(classes) != 1:
            names = ", ".join(one.__name__ for one in classes) or "none"
            raise ValueError(f"{path}: expected exactly one class, the model, but found {names}")
        model = classes[0]()
        if model_pt_path:
            model.load_state_dict(torch.load(model_pt_path, map_location=self.map_location))
        return model

    def _optimize(self) -> None:
        """Compile the model, if the configuration asks for it."""
        config = self.model_yaml_config or {}
        section = config.get("pt2")
        if isinstance(section, dict) and "compile" in section:
            options = section["compile"]
            if not isinstance(options, dict) or not options.get("enable"):
                return
            del options["enable"]
            self._compile(dict(options))
        elif isinstance(section, dict) and "export" not in section:
            self._compile(dict(section))
        elif isinstance(section, str):
            self._compile({"backend": section})
        elif ipex is not None and isinstance(self.model, torch.nn.Module):
            self.model = ipex.optimize(self.model)

    def _compile(self, options: dict[str, Any]) -> None:
        backend = options.get("backend")
        if isinstance(backend, str) and not check_valid_pt2_backend(backend):
            return
        try:
            self.model = torch.compile(self.model, **options)
        except Exception:
            logger.exception("torch.compile has failed, so the model runs as it is")
            return
        logger.info("the model is compiled by torch.compile with %s", options)

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the batch as a tensor on the device."""
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with torch.inference_mode():
            moved = data.to(self.device) if hasattr(data, "to") else data
            return self.model(moved, *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return the result as a list with one value for each request."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Run a batch, and return one result for each request.

        A request that asks for a description or an explanation gets that instead.
        """
        started = time.perf_counter()
        self.context = context
        if os.environ.get("ENABLE_TORCH_PROFILER", ""):
            # An `initialize` of the class itself may leave it out.
            self.manifest = self.manifest or context.manifest
            output, _ = self._infer_with_profiler(data=data)
        else:
            output = self._answer(data)
        if context.metrics is not None:
            took_ms = round((time.perf_counter() - started) * 1000, 2)
            context.metrics.add_time("HandlerTime", took_ms, None, "ms")
        return output

    def _answer(self, data: Any) -> Any:
        if self._is_describe():
            return [self.describe_handle()]
        prepared = self.preprocess(data)
        if self._is_explain():
            return self.explain_handle(prepared, data)
        return self.postprocess(self.inference(prepared))

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """Run a batch under torch's profiler; return the results and the profiler.

        Unless the handler's `profiler_args` have an `on_trace_ready`, the traces are written into a
        folder of the model below the folder of temporary files.
        """
        own = getattr(self, "profiler_args", None) or self._profiler_defaults()
        with torch.profiler.profile(**{"on_trace_ready": self._trace_writer(), **own}) as profiler:
            output = self._answer(data)
        logger.info("%s", profiler.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profiler

    def _trace_writer(self) -> Any:
        name = (self.manifest or {}).get("model", {}).get("modelName", "")
        folder = Path(tempfile.gettempdir()) / "pytorch_profiler" / name
        return torch.profiler.tensorboard_trace_handler(str(folder))

    @staticmethod
    def _profiler_defaults() -> dict[str, Any]:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        return {"activities": activities, "record_shapes": True}

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Return an explanation for each request, by the handler's `get_insights`.

        Args:
            raw_data: the batch before it; its first row may have a `target`.

        Raises:
            NotImplementedError: the handler cannot explain.
        """
        logger.info("explanations are computed")
        inputs: Any = None
        target: Any = 0
        row = raw_data[0]
        if isinstance(row, dict):
            inputs = row.get("data") or row.get("body")
            target = _as_target(row.get("target")) or 0
        get_insights = getattr(self, "get_insights", None)
        if get_insights is None:
            raise NotImplementedError(
                f"{type(self).__name__} cannot explain: it has no method get_insights"
            )
        return get_insights(data_preprocess, inputs, target)

    def _asks_for(self, what: str) -> bool:
        return bool(self.context) and self.context.get_request_header(0, what) == "True"

    def _is_explain(self) -> bool:
        asked = self._asks_for("explain")
        if asked:
            self.explain = True
        return asked

    def _is_describe(self) -> bool:
        return self._asks_for("describe")

    def describe_handle(self) -> Any:
        """Return the handler's own description of the model; None for none."""
        return None

    def get_device(self) -> Any:
        """Return the device of the model."""
        return self.device


def _as_target(value: Any) -> Any:
    """Return the class to explain; JSON that came as the bytes or the text of a form is parsed."""
    if isinstance(value, (bytes, bytearray, str)):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
