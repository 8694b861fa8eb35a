"""The backends of PyTorch: eager, compile, aot and torchscript; and TensorRT by its plug-in."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from handlers.optimize.forms import Args, Run
from handlers.optimize.source import Backend, Source, quiet
from headrace.errors import ConfigError

_PACKAGE: Final = "model.pt2"
_LIBRARY: Final = "model.so"
_SCRIPT: Final = "model.pt"
_ENGINE: Final = "model.ep"
#: Where torch keeps compiled kernels, in the folder of a variant.
INDUCTOR: Final = "inductor"


def _nothing(source: Source, folder: Path) -> None:
    """Write nothing: each process makes the variant itself."""


def _eager(source: Source, folder: Path) -> Run:
    return _inferred(source.flat)


def _compiled(source: Source, folder: Path) -> Run:
    """Compile the module for every batch size now; later calls compile nothing.

    With `allowed_batch_sizes` there is one compiled form for each; otherwise one for a batch of 1,
    and one for all others.
    """
    # Torch reads it when it first compiles. The next process finds the kernels there.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / INDUCTOR)
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, len(source.sizes) + 2)
    # A mode cannot be given together with freezing, so it is a setting while torch compiles.
    frozen = torch._inductor.config.patch(freezing=source.on_cpu)
    compiled = torch.compile(source.flat, mode=source.wanted.mode, dynamic=False)
    run = _inferred(compiled)
    with quiet(), frozen:
        for size in source.sizes or sorted({1, source.most}):
            args = tuple(one.zeros(size, source.device) for one in source.form.inputs)
            if not source.sizes and size > 1:
                _mark_open(source, args)
            # CUDA graphs are recorded in the second call.
            for _ in range(1 if source.on_cpu else 3):
                run(args)

    def without_compiling(args: Args) -> Sequence[Tensor]:
        with torch.compiler.set_stance("eager_on_recompile"):
            if not source.on_cpu:
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            found = run(args)
            # The next call of a CUDA graph writes into the same memory.
            return found if source.on_cpu else [one.clone() for one in found]

    return without_compiling


def _mark_open(source: Source, args: Args) -> None:
    for open_dims, value in zip(source.open_dims(), args, strict=True):
        for place in open_dims:
            torch._dynamo.mark_dynamic(value, place)


def _build_package(source: Source, folder: Path) -> None:
    settings = {"freezing": True} if source.on_cpu else {}
    program = source.exported(source.flat)
    with torch.no_grad(), quiet():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(folder / _PACKAGE), inductor_configs=settings
        )
    _check_open(source, program)
    if source.on_cpu:
        _unpack(folder)


def _check_open(source: Source, program: Any) -> None:
    """Check that the compiler has fixed no size that changes from call to call.

    A library with a fixed size does not check it, and reads beyond smaller inputs.
    """
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.name in names]
    for form, open_dims, value in zip(source.form.inputs, source.open_dims(), values, strict=True):
        for place in open_dims:
            size = value.shape[place]
            fixed = size if isinstance(size, int) else size.node.maybe_as_int()
            if fixed is not None:
                raise ConfigError(
                    f"the compiler has fixed the dimension {form.dims[place]} at {fixed}",
                    hint="use another backend, or another max_batch_size",
                )


def _unpack(folder: Path) -> None:
    """Take the library out of a package, which a load would unpack at each start."""
    with zipfile.ZipFile(folder / _PACKAGE) as package:
        (name,) = [one for one in package.namelist() if one.endswith(".so")]
        with package.open(name) as source, (folder / _LIBRARY).open("wb") as target:
            shutil.copyfileobj(source, target)
    (folder / _PACKAGE).unlink()


def _load_package(source: Source, folder: Path) -> Run:
    if not source.on_cpu:
        return _inferred(torch._inductor.aoti_load_package(str(folder / _PACKAGE)))
    # `aoti_load_package` imports the compiler, which takes more than a second.
    runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu
    library = runner(str(folder / _LIBRARY), 1)
    # The inputs and outputs of `Flat` are flat already.
    return _inferred(lambda *args: library.run(list(args)))


def _build_script(source: Source, folder: Path) -> None:
    with torch.no_grad(), quiet():
        traced: Any = torch.jit.trace(source.flat, source.example)  # type: ignore[no-untyped-call]
        torch.jit.freeze(traced).save(str(folder / _SCRIPT))


def _load_script(source: Source, folder: Path) -> Run:
    with torch.no_grad(), quiet():
        load: Any = torch.jit.load
        program = load(str(folder / _SCRIPT), map_location=source.device)
        if source.on_cpu:
            program = torch.jit.optimize_for_inference(program)
        run = _inferred(program)
        # The executor specialises the program in its first calls.
        for size in sorted({1, source.most}) * 2:
            run(tuple(one.zeros(size, source.device) for one in source.form.inputs))
    return run


def _build_engine(source: Source, folder: Path) -> None:
    import torch_tensorrt

    exported = source.exported(source.flat)
    inputs = [_range(torch_tensorrt, source, n) for n in range(len(source.example))]
    # The module has the precision already.
    engine = torch_tensorrt.dynamo.compile(
        exported, inputs=inputs, use_explicit_typing=True, truncate_double=True
    )
    torch_tensorrt.save(engine, str(folder / _ENGINE), inputs=list(source.example))


def _range(torch_tensorrt: Any, source: Source, n: int) -> Any:
    form, value = source.form.inputs[n], source.example[n]
    open_dims = source.open_dims()[n]
    if not open_dims:
        return torch_tensorrt.Input(shape=tuple(value.shape), dtype=value.dtype)
    least = [1 if place in open_dims else size for place, size in enumerate(form.shape)]
    return torch_tensorrt.Input(
        min_shape=tuple(least),
        opt_shape=tuple(value.shape),
        max_shape=tuple(value.shape),
        dtype=value.dtype,
    )


def _load_engine(source: Source, folder: Path) -> Run:
    import torch_tensorrt

    return _inferred(torch_tensorrt.load(str(folder / _ENGINE)).module())


def _inferred(program: Callable[..., Any]) -> Run:
    def run(args: Args) -> Sequence[Tensor]:
        with torch.inference_mode():
            found: Sequence[Tensor] = program(*args)
        return found

    return run


BACKENDS: Final = {
    "eager": Backend(_nothing, _eager),
    "compile": Backend(_nothing, _compiled),
    "aot": Backend(_build_package, _load_package),
    "torchscript": Backend(_build_script, _load_script),
    "tensorrt": Backend(_build_engine, _load_engine),
}
