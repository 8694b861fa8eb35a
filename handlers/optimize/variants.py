"""Puts the variant that the option `optimize` names in the place of a model's module.

A build is a folder in the cache, which all replicas share. It appears complete, by a rename; a
process that wants the same one waits for the lock of its name. The verdict on it is a file inside.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import torch
from torch import nn

from handlers.optimize import cache, runtimes, torch_backends
from handlers.optimize.check import Verdict, compare, together
from handlers.optimize.forms import Args, Form, Replacement, form_of
from handlers.optimize.source import Source
from headrace.config.model.optimize import EXTRAS, Optimize
from headrace.errors import ConfigError, HeadraceError
from headrace.handler import Exportable
from headrace.models.store import UnpackedModels
from headrace.signals import keeps_signal_stack

logger = logging.getLogger("headrace.model")

_SHOWN_CHARS: Final = 600
_TRACEBACK: Final = "traceback.txt"


def cause(error: BaseException) -> str:
    """Return an error in words: our own message and remedy, else its type, text and place."""
    if isinstance(error, HeadraceError):
        return error.message_with_hint
    text = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    text = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ..."
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def failure(problem: str, error: BaseException, folder: Path) -> str:
    """Write the traceback; return what failed, the cause, the remedy, and the file."""
    file = folder / _TRACEBACK
    with suppress(OSError):
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return (
        f"{problem}: {cause(error)}; use another backend, or mend the cause and run `headrace "
        f"optimize` with --again; the traceback is in {file}"
    )


_FORM: Final = "form.json"
_FAILED: Final = "failed.txt"
#: The backends that build or tune themselves for batch sizes. Other builds serve any size.
_OF_SIZES: Final = frozenset({"compile", "aot", "tensorrt"})
_BACKENDS: Final = {**torch_backends.BACKENDS, **runtimes.BACKENDS}


@dataclass(frozen=True)
class Samples:
    """Arguments of a module's calls; `timed` are those of batches, by size, the largest last."""

    calls: list[Args]
    timed: dict[int, Args]


@dataclass(frozen=True)
class Site:
    """Where a module runs.

    Attributes:
        cache: the folder of all builds.
        sizes: the batch sizes; empty for any.
        settings: plain data that decides over the module's inputs.
        samples: returns samples of a module; called only if there is no verdict yet.
        again: judge again, although there is a verdict, and build again what could not be built.
    """

    model: str
    cache: Path
    device: str
    most: int
    sizes: tuple[int, ...]
    settings: Mapping[str, Any]
    samples: Callable[[Exportable], Samples]
    again: bool = False


@dataclass(frozen=True)
class Installed:
    """The outcome of `install`.

    Attributes:
        verdict: of the comparison, in this process or an earlier one.
        build_s: seconds of the build and the comparison; 0 if both were in the cache.
        problem: why the variant is not in the module's place; "" if it is.
        keep: writes another verdict of it into the cache.
    """

    verdict: Verdict = field(default_factory=Verdict)
    build_s: float = 0.0
    name: str = "eager"
    problem: str = "the module itself is wanted"
    keep: Callable[[Verdict], None] = lambda _: None

    @property
    def used(self) -> bool:
        """Whether the variant is in the module's place."""
        return not self.problem


@keeps_signal_stack()
def install(
    exportables: Sequence[Exportable], wanted: Optimize, site: Site, *, refused_too: bool = False
) -> Installed:
    """Put variants in the places of a handler's modules, in all or in none.

    Args:
        refused_too: use a wrong or slower variant too, to measure it; not one that does not run.

    Raises:
        ConfigError: what the variant needs is not there.
    """
    _check_possible(wanted, site.device)
    if wanted.backend == "eager" and wanted.precision == "float":
        return Installed()
    variants = [_Variant(exportable, wanted, site) for exportable in exportables]
    verdicts = []
    build_s = 0.0
    for variant in variants:
        found, seconds = variant.verdict()
        verdicts.append(found)
        build_s += seconds
    verdict = together(verdicts, [variant.module_name for variant in variants])
    if verdict.broken or (verdict.refused and not refused_too):
        problem = verdict.refused
    else:
        problem = next(filter(None, (variant.load() for variant in variants)), "")
    if not problem:
        for variant in variants:
            variant.use()

    def keep(judged: Verdict) -> None:
        for variant, own in zip(variants, verdicts, strict=True):
            variant.keep(msgspec.structs.replace(own, times=judged.times))

    return Installed(verdict, build_s, wanted.name, problem, keep)


#: How long a build that no process uses is kept, in seconds.
UNUSED_KEEP_S: Final = 7 * 86_400


class _Variant:
    """One variant of one module, with its place in the cache."""

    def __init__(self, exportable: Exportable, wanted: Optimize, site: Site) -> None:
        self._exportable = exportable
        self._wanted = wanted
        self._site = site
        self._module = cast("nn.Module", exportable.module)
        self._backend = _BACKENDS[wanted.backend]
        self._replacement: Replacement | None = None
        self._threads = torch.get_num_threads()
        shapes = {"most": site.most, "sizes": site.sizes}
        settings = {**site.settings, **(shapes if wanted.backend in _OF_SIZES else {})}
        settings["one"] = site.most == 1
        self.key = cache.build_key(wanted, self._module, site.device, settings)
        self.store = UnpackedModels(site.cache)
        self._verdict_name = cache.verdict_name(wanted, self._threads)

    @property
    def module_name(self) -> str:
        """The name of the module's class."""
        return type(self._module).__name__

    def verdict(self) -> tuple[Verdict, float]:
        """Return the verdict of an earlier process, else build and judge, and the seconds of it."""
        again = self._site.again
        found = None if again else self.cached()
        if found is not None:
            return found, 0.0
        started = time.monotonic()
        with self.store.noted("", self.key) as note:
            found = (None if again else self.cached()) or self.build_or_refuse()
            note.write("", self.key)
        seconds = time.monotonic() - started
        self.store.prune(unused_s=UNUSED_KEEP_S)
        return found, seconds

    def cached(self) -> Verdict | None:
        """Return the verdict of an earlier process; None if it has none."""
        folder = self.store.hold(self.key)
        if folder is None:
            return None
        try:
            return msgspec.json.decode((folder / self._verdict_name).read_bytes(), type=Verdict)
        except (OSError, msgspec.MsgspecError):
            return None

    def build_or_refuse(self) -> Verdict:
        """Build the variant; a disk or a memory that is full is no verdict for other processes."""
        try:
            return self._build()
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            return Verdict(wrong=f"it cannot be built now: {cause(error)}", broken=True)

    def _build(self) -> Verdict:
        """Build the variant unless that is done, compare it with the module, keep the verdict."""
        samples = self._site.samples(self._exportable)
        example = samples.timed[max(samples.timed)]
        form = form_of(self._module, example, self._exportable.dims, batches=self._site.most > 1)
        source = self._source(form, example, samples)
        folder = self.store.add(self.key, lambda folder: self._fill(source, folder))
        if self._site.again and (folder / _FAILED).exists():
            # Other processes may hold the folder, so it stays.
            with self.store.temporary() as temporary:
                self._fill(source, temporary)
                (folder / _FAILED).unlink()
                shutil.copytree(temporary, folder, dirs_exist_ok=True)
        verdict = self._judged(folder, samples)
        self.keep(verdict)
        return verdict

    def keep(self, verdict: Verdict) -> None:
        """Write a verdict into the cache."""
        path = self._site.cache / self.key / self._verdict_name
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(verdict))
        temporary.replace(path)

    def load(self) -> str:
        """Load the variant; return why that was not possible, else ""."""
        folder = self.store.hold(self.key)
        if folder is None:
            return "its build was removed by another process"
        try:
            self._loaded(folder)
        except Exception as error:  # noqa: BLE001 - the model runs eager
            problem = f"{failure('it cannot be loaded', error, folder)}; remove {folder} first"
            logger.warning(
                "optimize: the model runs eager: %s: %s", self._wanted.name, problem,
                extra={"model": self._site.model},
            )  # fmt: skip
            return problem
        return ""

    def use(self) -> None:
        """Put the variant, which is loaded, in the module's place."""
        self._exportable.use(cast("Replacement", self._replacement))

    def _judged(self, folder: Path, samples: Samples) -> Verdict:
        if (folder / _FAILED).exists():
            text = (folder / _FAILED).read_text(encoding="utf-8")
            return Verdict(wrong=text, broken=True, judged_at=time.time())
        try:
            return compare(
                self._module, self._loaded(folder), samples.calls, samples.timed,
                self._exportable.scores, self._wanted.error_limit,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the model runs eager
            text = failure("it does not run", error, folder)
            return Verdict(wrong=text, broken=True, judged_at=time.time())

    def _fill(self, source: Source, folder: Path) -> None:
        """Build into a folder; a failure is written there, so that no other process tries again."""
        (folder / _FORM).write_bytes(msgspec.json.encode(source.form))
        logger.info("optimize: %s is built", self._wanted.name, extra={"model": self._site.model})
        try:
            self._backend.build(source, folder)
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - an exporter raises anything; the model runs eager
            text = failure("it cannot be built", error, folder)
            # The folder gets its own name when it is complete.
            text = text.replace(str(folder), str(self._site.cache / self.key))
            (folder / _FAILED).write_text(text, encoding="utf-8")

    def _loaded(self, folder: Path) -> Replacement:
        if self._replacement is None:
            form = msgspec.json.decode((folder / _FORM).read_bytes(), type=Form)
            run = self._backend.load(self._source(form), folder)
            self._replacement = Replacement(self._module, form, run)
        return self._replacement

    def _source(self, form: Form, example: Args = (), samples: Samples | None = None) -> Source:
        site = self._site
        calls = (*samples.calls, *samples.timed.values()) if samples is not None else ()
        return Source(
            self._wanted, self._module, form, example, calls,
            site.sizes, site.most, site.device, self._threads,
        )  # fmt: skip


def _check_possible(wanted: Optimize, device: str) -> None:
    extra, names = EXTRAS.get(wanted.backend, ("", ()))
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"optimize: the backend {wanted.backend} needs packages that are not installed: "
            f"{', '.join(missing)}",
            hint=f"pip install 'headrace[{extra}]'",
        )
    if wanted.backend == "tensorrt" and device == "cpu":
        raise ConfigError(
            "optimize: tensorrt needs a GPU, but the model is on the CPU",
            hint="set its device to cuda, or backend to openvino, onnxruntime or compile",
        )
