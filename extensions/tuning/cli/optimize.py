"""`headrace optimize`: measures the variants of a model on this machine, without a server."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from extensions.tuning.cli.arguments import (
    budget_seconds,
    check_folder,
    json_text,
    own_model,
    write_file,
)
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.interrupts import InterruptHandler, Terminated, stop_reason
from headrace.cli.shared.options import argument, flag, option
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from extensions.tuning.optimize.report import Comparison
    from headrace.config.model.catalog import ModelConfig
    from headrace.config.model.optimize import Optimize

ROUNDS: Final = 10
#: The part of a time limit in which variants are built and loaded. Each has its first rounds then.
_LOADING: Final = 0.85


def optimize(
    model: str = argument("MODEL", "Model of the models file.", ...),
    compare: bool = flag("--compare", "Measure all variants (the default)."),
    inputs: Path | None = option(
        "--input -i FILE", "File or folder of inputs to check the outputs with."
    ),
    variants: str | None = option(
        "--variants LIST",
        "Variants, such as compile,openvino:int8 (default: all that this machine can run).",
    ),
    sizes: str | None = option(
        "--sizes LIST", "Batch sizes, such as 1,8 (default: 1 and max_batch_size)."
    ),
    rounds: int = option("--rounds N", "Batches of each size.", ROUNDS, min=3, max=10_000),
    max_error: float | None = option("--max-error X", "Largest error that is allowed.", max=1.0),
    device: str | None = option("--device DEVICE", "torch device (default: the model's, or cpu)."),
    models: Annotated[Path | None, option("--models FILE", "Models file.", ...)] = None,
    json_file: Path | None = option("--json FILE", "Write all figures as JSON."),
    html: Path | None = option("--html FILE", "Write a page with charts."),
    budget: str | None = option(
        "--budget TIME", "How long it may take, such as 5m (default: any time)."
    ),
    again: bool = flag("--again", "Build and compare again what failed or was judged before."),
) -> None:
    """Measure the variants of a model: time, memory, error; for the option `optimize`.

    What was measured is also printed if the budget, Ctrl-C or SIGTERM ends the command.
    """
    # Imported here to keep other commands fast.
    from extensions.tuning.optimize import page
    from headrace.config.settings import load_settings
    from headrace.models.catalog import load_models
    from headrace.server.packages import require_extras

    del compare  # there is no other mode
    require_extras("optimize", "worker")
    texts = {"models_file": str(models)} if models is not None else {}
    if max_error is not None and max_error <= 0:
        raise ConfigError(f"--max-error: {max_error:g} is too small", hint="give more than 0")
    settings = load_settings(None, os.environ, texts)
    catalog = load_models(settings)
    config = own_model(catalog, model, "optimize")
    for path in (json_file, html):
        check_folder(path)
    device = device or ("cpu" if config.device == "auto" else config.device)
    code, comparison = _until_ended(
        lambda keep: compared(
            config,
            catalog.base_dir,
            device,
            _variants(variants, config, device, max_error),
            sizes=_sizes(sizes, config),
            rounds=rounds,
            inputs=inputs_of(inputs, config, catalog.base_dir),
            state_dir=settings.state_dir.absolute(),
            limit_s=None if budget is None else budget_seconds(budget),
            again=again,
            keep=keep,
        )
    )
    for path, text in ((json_file, json_text), (html, page.html)):
        if path is not None:
            write_file(path, text(comparison))
    _print(comparison)
    if code:
        raise typer.Exit(code)


def _until_ended(
    measure: Callable[[Callable[[Comparison], None]], Comparison],
) -> tuple[ExitCode, Comparison]:
    """Measure; after a signal, return the exit code and what was measured until then."""
    so_far: list[Comparison] = []
    try:
        with InterruptHandler(None):
            return ExitCode.DONE, measure(so_far.append)
    except (KeyboardInterrupt, Terminated) as error:
        code, reason = stop_reason(error, "a file")
        if not so_far:
            output.message(f"{reason}; nothing was measured until then")
            raise typer.Exit(code) from None
        output.message(f"{reason}; the figures are those that were measured until then")
        return code, so_far[-1]


def compared(
    config: ModelConfig,
    folder: Path,
    device: str,
    variants: Iterable[Optimize],
    *,
    sizes: Sequence[int],
    rounds: int,
    inputs: str,
    state_dir: Path,
    limit_s: float | None = None,
    loading: float = _LOADING,
    again: bool = False,
    keep: Callable[[Comparison], None] = lambda _: None,
) -> Comparison:
    """Measure variants of a model in processes of their own; their log goes to standard error.

    Args:
        folder: the folder of the models file.
        inputs: a file, or a folder of inputs; "" for the handler's example.
        state_dir: the folder of the builds of variants, and of the last comparison.
        limit_s: how long it may take; None for any time. What was measured by then is returned.
        loading: the part of that time in which variants may be built and loaded.
        again: build and compare again what failed or was judged before.
        keep: called with what was measured, also if a signal ends this call.

    Raises:
        ConfigError: the model does not load or has no inputs, or no batch was measured in time.
    """
    from extensions.tuning.optimize import kept
    from headrace.config.model.optimize import OPTIMIZED

    wanted = list(variants)
    frame = frame_of(config, folder, device, inputs) | {
        "variants": [msgspec.to_builtins(one) for one in wanted],
        "sizes": sizes,
        "rounds": rounds,
        "optimize_cache": str(state_dir / OPTIMIZED),
        "load_limit_s": None if limit_s is None else limit_s * loading,
        "again": again,
    }

    def noted(found: Comparison) -> None:
        found = with_late(found, wanted)
        kept.write(state_dir, frame, found)
        keep(found)

    return with_late(_measured(frame, config, limit_s, noted), wanted)


def frame_of(config: ModelConfig, folder: Path, device: str, inputs: str) -> dict[str, Any]:
    """Return what a process that measures must know of a model and its inputs."""
    return {
        **config.init_frame(folder, device),
        "inputs": inputs,
        "replicas": max(1, config.replicas),
        "malloc_tuning": config.malloc_tuning,
    }


def with_late(comparison: Comparison, wanted: Iterable[Optimize]) -> Comparison:
    """Return a comparison that also has the variants for which there was no time."""
    from extensions.tuning.optimize.report import LATE, Variant

    if comparison.without_module:
        return comparison
    known = {variant.optimize for variant in comparison.variants}
    missing = [one for one in dict.fromkeys(wanted) if one not in known]
    if not missing:
        return comparison
    late = [Variant(optimize=one, refused=LATE) for one in missing]
    return msgspec.structs.replace(comparison, variants=[*comparison.variants, *late], cut=True)


def _print(comparison: Comparison) -> None:
    from extensions.tuning.machine import busy_warning
    from extensions.tuning.optimize import page

    if busy := busy_warning(comparison.environment):
        output.message(busy)
    columns, rows = page.table(comparison)
    output.table(columns, rows)
    for text in page.remarks(comparison):
        output.message(text)


def _variants(
    text: str | None, config: ModelConfig, device: str, max_error: float | None
) -> Iterable[Optimize]:
    """Return the variants that are named, else those that can run; the model's own is one."""
    from extensions.tuning.optimize.candidates import candidates
    from headrace.config.model.optimize import Optimize, optimize_problem
    from headrace.config.suggestions import not_a_choice

    found = [] if config.optimize is None else [config.optimize]
    if text is None:
        found += candidates(device)
    else:
        for name in filter(None, text.split(",")):
            backend, _, rest = name.strip().partition(":")
            precision, _, mode = rest.partition(":")
            keys = {"backend": backend, "precision": precision or "float"}
            try:
                one = msgspec.convert({**keys, "mode": mode or "default"}, Optimize)
            except msgspec.ValidationError as error:
                problem = not_a_choice(error, Optimize) or error
                raise ConfigError(
                    f"--variants: {name!r}: {problem}",
                    hint="write BACKEND, BACKEND:PRECISION or BACKEND:PRECISION:MODE",
                ) from None
            if problem := optimize_problem(one):
                raise ConfigError(f"--variants: {name!r}: {problem}")
            found.append(one)
    if max_error is not None:
        found = [msgspec.structs.replace(one, max_error=max_error) for one in found]
    return found


def _sizes(text: str | None, config: ModelConfig) -> Sequence[int]:
    if text is None:
        return config.allowed_batch_sizes or sorted({1, config.max_batch_size})
    try:
        sizes = sorted({int(one) for one in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1 or len(sizes) > 64 or sizes[-1] > config.max_batch_size:
        raise ConfigError(
            f"--sizes: {text!r} is no list of batch sizes up to max_batch_size, "
            f"{config.max_batch_size}",
            hint="write numbers with commas, such as 1,8",
        )
    return sizes


def inputs_of(given: Path | None, config: ModelConfig, base: Path) -> str:
    """Return the file or folder of the inputs; "" for the handler's example."""
    if given is not None:
        if not given.exists():
            raise ConfigError(f"--input: {given} does not exist", hint="give a file or a folder")
        if given.is_dir() and not any(path.is_file() for path in given.rglob("[!.]*")):
            raise ConfigError(f"--input: {given} has no files", hint="put inputs there")
        return str(given.absolute())
    calibrate = config.optimize.calibrate if config.optimize is not None else None
    return str(base / Path(calibrate).expanduser()) if calibrate else ""


def _measured(
    frame: dict[str, Any],
    config: ModelConfig,
    limit_s: float | None,
    keep: Callable[[Comparison], None],
) -> Comparison:
    """Run the process that measures; its log comes on standard error."""
    from extensions.tuning.optimize.report import read_lines

    with (
        tempfile.NamedTemporaryFile(prefix="headrace-optimize-") as file,
        tempfile.NamedTemporaryFile(prefix="headrace-optimize-") as document,
    ):
        file.write(msgspec.json.encode(frame))
        file.flush()
        command = [sys.executable, "-m", "extensions.tuning.workers.measured", file.name]
        process = subprocess.Popen(command, env=_variables(config), stdout=document)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            process.kill()
            process.wait()
            found = read_lines(Path(document.name).read_bytes())
            measured = found is not None and any(variant.times for variant in found.variants)
            if found is not None and measured:
                found = msgspec.structs.replace(found, cut=code != 0)
                keep(found)
    if code is None and not measured:
        raise ConfigError(
            f"the variants of {config.name} were not measured within {limit_s:.0f} s",
            hint="give a longer --budget; builds are kept",
        )
    if code or found is None:
        raise ConfigError(
            f"{config.name} cannot be measured; its process ended with {code}",
            hint="the lines above have the reason",
        )
    return found


def _variables(config: ModelConfig) -> dict[str, str]:
    from headrace.config.environment import with_packages, with_server_path
    from headrace.models.requirements import installed

    # A build that is ended for want of time leaves semaphores, which Python removes with a warning.
    quiet = {"PYTHONWARNINGS": "ignore:resource_tracker:UserWarning"}
    variables = with_server_path({**quiet, **os.environ})
    if config.requirements is None:
        return variables
    wanted = config.requirements
    packages = installed(Path(wanted.file), Path(wanted.environments))
    return with_packages(variables, packages)
