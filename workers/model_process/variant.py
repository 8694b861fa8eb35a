"""Puts the variant of the option `optimize` in the place of a handler's module, before the warm-up.

The inputs for its check go through the handler's own verbs, which call the module: so the variant
gets what the model will get.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.config.model.optimize import Optimize
from headrace.errors import ConfigError, InputError, InvalidRequest
from headrace.handler import Exportable
from headrace.jobs.options import InputDetails
from headrace.jobs.values.encoding import binary_input
from headrace.jobs.values.media_types import BINARY_TYPE, image_type
from headrace.observability import logs
from workers.model_process.batch_state import StageTimes, SubBatch
from workers.model_process.context import Input
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import as_sent, example_of

if TYPE_CHECKING:
    from handlers.optimize.variants import Installed, Samples

logger = logging.getLogger("headrace.model")

#: The most calibration inputs, and the most bytes of the tensors that are made of them.
INPUTS_MAX: Final = 512
TENSORS_MAX_BYTES: Final = 1 << 30
#: The most inputs that are tried until one makes the verbs call the module.
TIMED_MAX: Final = 16
_SAMPLE_ID: Final = "sample"
_TEXT_SUFFIXES: Final = (".txt", ".md")


def install_variant(
    executor: BatchExecutor, config: dict[str, Any], *, refused_too: bool = False
) -> Installed | None:
    """Put the variant that the init frame names in the place of the handler's module.

    Args:
        executor: has the handler, which is initialised.
        config: the init frame.
        refused_too: use a wrong or slower variant too, to measure it.

    Returns:
        The variant, with its check; None if the frame names none.

    Raises:
        ConfigError: the handler has no module to optimize, or a package or a file is missing.
    """
    if not config.get("optimize"):
        return None
    wanted = msgspec.convert(config["optimize"], Optimize)
    if (wanted.backend, wanted.precision) == ("eager", "float"):
        return None
    # A model without this option does not pay for its imports.
    from handlers.optimize.variants import Site, install

    context = executor.context
    settings = {name: config[name] for name in ("handler", "options", "tensors", "channels_last")}
    site = Site(
        context.model_name, Path(config["optimize_cache"]), context.device, context.max_batch_size,
        tuple(context.allowed_batch_sizes), settings,
        lambda exportable: samples(executor, exportable, _logged_inputs(executor, config)),
        again=config.get("again", False),
    )  # fmt: skip
    installed = install(exportables_of(executor), wanted, site, refused_too=refused_too)
    _log(wanted, installed, context.model_name)
    return installed


def exportables_of(executor: BatchExecutor) -> Sequence[Exportable]:
    """Return the modules that can be optimized; raise ConfigError if the handler names none."""
    offered = _offered(executor)
    if not offered:
        raise ConfigError(
            f"model {executor.context.model_name}: its handler has no module to optimize",
            hint="leave `optimize` out, or return an Exportable from the handler's exportable()",
        )
    return offered


def has_module(executor: BatchExecutor) -> bool:
    """Return whether the handler offers a module that can be optimized."""
    return bool(_offered(executor))


def _offered(executor: BatchExecutor) -> Sequence[Exportable]:
    make = getattr(executor.handler, "exportable", None)
    offered = make() if make is not None else None
    return [offered] if isinstance(offered, Exportable) else offered or []


def _log(wanted: Optimize, installed: Installed, model: str) -> None:
    verdict, extra = installed.verdict, {"model": model}
    if verdict.refused:
        logger.warning(
            "optimize: the model runs eager: %s is refused: %s", wanted.name, verdict.refused,
            extra=extra,
        )  # fmt: skip
    elif installed.used:
        logger.info(
            "optimize: %s runs, %s; largest error %.2g, agreement %s",
            wanted.name, verdict.speed, verdict.error,
            "-" if verdict.agreement is None else f"{verdict.agreement:.1%}", extra=extra,
        )  # fmt: skip


def describe(installed: Installed) -> str:
    """Return in words which variant runs, for the worker's report."""
    name, verdict = installed.name, installed.verdict
    if verdict.refused:
        return f"eager; {name} is refused: {verdict.refused}"
    if not installed.used:
        return f"eager; {name} is not used: {installed.problem}"
    return f"{name}, {verdict.speed}"


def _logged_inputs(executor: BatchExecutor, config: dict[str, Any]) -> list[Input]:
    inputs, left_out = inputs_of(executor, config)
    if left_out:
        logger.warning("optimize: %s", left_out, extra={"model": config["model"]})
    return inputs


def inputs_of(executor: BatchExecutor, config: dict[str, Any]) -> tuple[list[Input], str]:
    """Return the calibration inputs, else the handler's example, and in words what is left out.

    Raises:
        ConfigError: the folder does not exist, has no files or none that can be decoded, or there
            is neither.
    """
    details = InputDetails(parameters=msgspec.json.encode(config["example_parameters"]))
    folder = config["optimize"].get("calibrate")
    if folder:
        return _decoded_files(executor, Path(folder), details.text())
    example = example_of(executor.handler)
    if example is None:
        raise ConfigError(
            "optimize: the handler has no example_input, so outputs cannot be compared",
            hint="set `calibrate` to a folder of inputs, or give the handler an example_input",
        )
    if config["optimize"]["precision"] == "int8":
        logger.warning(
            "optimize: int8 takes its scales from example_input only; set `calibrate` to a folder "
            "of real inputs",
            extra={"model": config["model"]},
        )
    text, nested = as_sent(example)
    details = msgspec.structs.replace(details, nested=nested)
    return [executor.decode(_SAMPLE_ID, text, details=details.text())], ""


def _decoded_files(
    executor: BatchExecutor, folder: Path, details: bytes
) -> tuple[list[Input], str]:
    """Return the inputs of the files that can be decoded, and in words which cannot."""
    inputs: list[Input] = []
    bad: list[str] = []
    for n, (path, text) in enumerate(_files(folder)):
        try:
            inputs.append(executor.decode(f"{_SAMPLE_ID}-{n}", text, details=details))
        except InvalidRequest as error:
            bad.append(f"{path}: {error.message}")
    if not inputs:
        raise ConfigError(
            f"optimize.calibrate: none of the files is an input; {bad[0]}",
            hint="put inputs there that a client would send",
        )
    files = "1 file that is no input" if len(bad) == 1 else f"{len(bad)} files that are no inputs"
    return inputs, f"leaves out {files}; {bad[0]}" if bad else ""


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a folder, or a file, as a client would send them."""
    if not folder.exists():
        raise ConfigError(
            f"optimize.calibrate: there is no folder {folder}",
            hint="correct the path; it refers to the folder of the models file",
        )
    paths = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    files = [path for path in paths if path.is_file() and path.name[:1] != "."]
    if not files:
        raise ConfigError(f"optimize.calibrate: {folder} has no files", hint="put inputs there")
    for path in files[:INPUTS_MAX]:
        body = path.read_bytes()
        if path.suffix == ".json":
            yield path, body
        elif path.suffix in _TEXT_SUFFIXES:
            yield path, msgspec.json.encode(body.decode("utf-8", "replace"))
        else:
            yield path, binary_input(body, image_type(body) or BINARY_TYPE)


def refusal(executor: BatchExecutor, item: Input) -> object:
    """Return the error with which `preprocess` refuses an input; None if it accepts it."""
    batch = SubBatch([item], StageTimes(), range(1))
    try:
        executor.prepare(batch)
    except InputError as error:
        return error
    return None if batch.good else batch.results[0]


def samples(executor: BatchExecutor, exportable: Exportable, inputs: Sequence[Input]) -> Samples:
    """Return the arguments with which the verbs call the module; raise ConfigError if none do."""
    from handlers.optimize.variants import Samples

    context = executor.context
    sizes = context.allowed_batch_sizes or [1, context.max_batch_size]
    calls: list[tuple[Any, ...]] = []
    good: list[Input] = []
    size_max = context.max_batch_size
    for start in range(0, len(inputs), size_max):
        chunk = list(inputs[start : start + size_max])
        try:
            made, results = _calls(executor, exportable, chunk)
        except InputError:  # of one input; it ends the batch where `preprocess` raises it
            chunk = [item for item in chunk if refusal(executor, item) is None]
            if not chunk:
                continue
            made, results = _calls(executor, exportable, chunk)
        good += [item for item, bad in zip(chunk, results, strict=True) if not bad]
        calls += made
        if sum(tensor.nbytes for args in calls for tensor in args) > TENSORS_MAX_BYTES:
            break
    # A second stage is not called for an image on which the first one finds nothing.
    found = (_timed(executor, exportable, item, sizes) for item in good[:TIMED_MAX])
    timed = next(filter(None, found), {})
    if not timed:
        raise ConfigError(
            f"model {context.model_name}: a batch of its inputs does not call the module of "
            "exportable() once, with tensors as positional arguments",
            hint="correct the inputs (optimize.calibrate or example_input), or leave `optimize` "
            "out",
        )
    return Samples(calls, timed)


def _timed(
    executor: BatchExecutor, exportable: Exportable, item: Input, sizes: Sequence[int]
) -> dict[int, tuple[Any, ...]]:
    """Return the arguments of the smallest and of the largest batch of an input."""
    timed = {}
    for size in sorted({min(sizes), max(sizes)}):
        made, _ = _calls(executor, exportable, [item] * size)
        if len(made) == 1:
            timed[size] = made[0]
    return timed


def _calls(
    executor: BatchExecutor, exportable: Exportable, inputs: Sequence[Input]
) -> tuple[list[tuple[Any, ...]], list[bool]]:
    """Return the arguments of the module's calls for a batch, and which results are errors."""
    calls: list[tuple[Any, ...]] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not kwargs and all(hasattr(tensor, "nbytes") for tensor in args):
            calls.append(args)

    hook = exportable.module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        batch = SubBatch(list(inputs), StageTimes(), range(len(inputs)))
        executor.verbs(batch)
    finally:
        hook.remove()
        # Later lines of the log are about no input.
        logs.RUNNING_JOBS.set(())
    # A copy outside of inference mode can be exported.
    copies = [tuple(tensor.clone() for tensor in args) for args in calls]
    return copies, [isinstance(result, BaseException) for result in batch.results]
