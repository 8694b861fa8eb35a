"""The backends that are runtimes of their own: onnxruntime and OpenVINO."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from handlers.common.tensor_programs import onnx_session
from handlers.optimize.forms import Args, Flat, Run
from handlers.optimize.source import Backend, Source, quiet

_ONNX: Final = "model.onnx"
_FLOAT_ONNX: Final = "float.onnx"
_IR: Final = "model.xml"
#: Above it ONNX keeps the weights in a file of their own: protobuf allows 2 GiB.
_INSIDE_MAX_BYTES: Final = 1_500_000_000
#: The most calibration inputs that the quantisation reads.
CALIBRATION_MAX: Final = 300
_PRECISION_HINTS: Final = {"half": "f16", "bfloat16": "bf16"}


def _arrays(args: Args) -> list[NDArray[Any]]:
    return [np.ascontiguousarray(one.cpu().numpy()) for one in args]


def _build_onnx(source: Source, folder: Path) -> None:
    if source.wanted.precision != "int8":
        _export_onnx(source, folder / _ONNX)
        return
    from onnxruntime import quantization

    path = folder / _FLOAT_ONNX
    _export_onnx(source, path)
    target = str(folder / _ONNX)
    with quiet(), _silent():
        if source.has_convolutions:
            quantization.shape_inference.quant_pre_process(
                str(path), str(path), skip_symbolic_shape=True
            )
            quantization.quantize_static(
                str(path),
                target,
                _reader(quantization, source, path),
                per_channel=True,
                # Without VNNI, products of 8 bits overflow the 16 bits of their sums.
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        else:
            # Transformers: the scale of activations is found at each call.
            quantization.quantize_dynamic(
                str(path), target, per_channel=True, reduce_range=True,
                weight_type=quantization.QuantType.QInt8,
            )  # fmt: skip
    path.unlink()


def _export_onnx(source: Source, path: Path) -> None:
    weights = sum(one.nbytes for one in source.module.state_dict().values())
    with torch.no_grad(), quiet(), _silent():
        torch.onnx.export(
            source.exported(source.flat),
            source.example,
            str(path),
            dynamo=True,
            external_data=weights > _INSIDE_MAX_BYTES,
            verbose=False,
        )


def _reader(quantization: Any, source: Source, path: Path) -> Any:
    import onnx

    names = [one.name for one in onnx.load(str(path), load_external_data=False).graph.input]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        """Yields the calibration inputs by their names."""

        def __init__(self) -> None:
            self._calls = iter(source.calibration[:CALIBRATION_MAX])

        def get_next(self) -> dict[str, NDArray[Any]] | None:
            """Return the next inputs; None at the end."""
            args = next(self._calls, None)
            return None if args is None else dict(zip(names, _arrays(args), strict=True))

    return Reader()


def _load_onnx(source: Source, folder: Path) -> Run:
    session = onnx_session(folder / _ONNX, source.device, source.threads)
    names = [one.name for one in session.get_inputs()]

    def run(args: Args) -> Sequence[Tensor]:
        found = session.run(None, dict(zip(names, _arrays(args), strict=True)))
        return [torch.from_numpy(one).to(source.device) for one in found]

    return run


def _build_openvino(source: Source, folder: Path) -> None:
    with _openvino() as openvino, quiet(), _silent():
        # The runtime computes in the precision that its hint names; the model stays float.
        model = openvino.convert_model(source.exported(Flat(source.module).eval()))
        if source.wanted.precision == "int8":
            model = _quantised(source, model)
        openvino.save_model(model, str(folder / _IR), compress_to_fp16=False)


def _quantised(source: Source, model: Any) -> Any:
    import nncf

    nncf.set_log_level(logging.ERROR)
    calls = source.calibration[:CALIBRATION_MAX]
    kind = None if source.has_convolutions else nncf.ModelType.TRANSFORMER
    return nncf.quantize(
        model,
        nncf.Dataset([tuple(_arrays(args)) for args in calls]),
        subset_size=len(calls),
        model_type=kind,
    )


def _load_openvino(source: Source, folder: Path) -> Run:
    with _openvino() as openvino:
        core = openvino.Core()
        device = "CPU" if source.on_cpu else "GPU"
        settings = {
            # Otherwise a CPU with bfloat16 would compute in it.
            "INFERENCE_PRECISION_HINT": _PRECISION_HINTS.get(source.wanted.precision, "f32"),
            "PERFORMANCE_HINT": "LATENCY",
            "CACHE_DIR": str(folder),
        }
        if source.on_cpu:
            # The worker has chosen the cores of this process.
            settings |= {"INFERENCE_NUM_THREADS": str(source.threads), "ENABLE_CPU_PINNING": "NO"}
        compiled = core.compile_model(core.read_model(str(folder / _IR)), device, settings)
    request = compiled.create_infer_request()
    outputs = compiled.outputs

    def run(args: Args) -> Sequence[Tensor]:
        found = request.infer(_arrays(args), share_inputs=True, share_outputs=False)
        return [torch.from_numpy(found[one]).to(source.device) for one in outputs]

    return run


@contextlib.contextmanager
def _openvino() -> Iterator[Any]:
    """Import OpenVINO without its telemetry, which sends by default what a process converts."""
    # An import of None raises ImportError, and OpenVINO and NNCF then send nothing.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    yield openvino


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide progress bars; a model process has a log and no terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "nncf", "root")]
    levels = [one.level for one in loggers]
    for one in loggers[:2]:
        one.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


BACKENDS: Final = {
    "onnxruntime": Backend(_build_onnx, _load_onnx),
    "openvino": Backend(_build_openvino, _load_openvino),
}
