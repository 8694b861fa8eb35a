"""Puts the variant that the option `optimize` names in the place of a model's module.

A build is a folder in the cache, which all replicas share. It appears complete, by a rename; a
process that wants the same one waits for the lock of its name. The verdict on it is a file inside.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import torch
from torch import nn

from handlers.optimize import cache, runtimes, torch_backends
from handlers.optimize.check import Verdict, compare
from handlers.optimize.forms import Args, Form, Replacement, form_of
from handlers.optimize.source import Source
from headrace.config.optimize import EXTRAS, Optimize
from headrace.errors import ConfigError
from headrace.handler import Exportable
from headrace.models.store import UnpackedModels

logger = logging.getLogger("headrace.model")

_FORM: Final = "form.json"
_FAILED: Final = "failed.txt"
_SHOWN_CHARS: Final = 600
_BACKENDS: Final = {**torch_backends.BACKENDS, **runtimes.BACKENDS}


@dataclass(frozen=True)
class Samples:
    """Arguments with which the verbs have called a module.

    Attributes:
        calls: those of the calibration inputs.
        timed: those of a batch, by its size; the last is the largest batch.
    """

    calls: list[Args]
    timed: dict[int, Args]


@dataclass(frozen=True)
class Site:
    """Where a module runs.

    Attributes:
        model: the name of the model.
        cache: the folder of all builds.
        device: the torch device.
        most: the largest batch.
        sizes: the batch sizes; empty for any.
        settings: plain data that decides over the module's inputs.
        samples: returns samples; called only if there is no verdict yet.
    """

    model: str
    cache: Path
    device: str
    most: int
    sizes: tuple[int, ...]
    settings: Mapping[str, Any]
    samples: Callable[[], Samples]


@dataclass(frozen=True)
class Installed:
    """The outcome of `install`.

    Attributes:
        verdict: of the comparison, in this process or an earlier one.
        build_s: seconds of the build and the comparison; 0 if both were in the cache.
        used: whether the variant is in the module's place.
        name: of the variant.
    """

    verdict: Verdict = field(default_factory=Verdict)
    build_s: float = 0.0
    used: bool = False
    name: str = "eager"


def install(
    exportable: Exportable, wanted: Optimize, site: Site, *, refused_too: bool = False
) -> Installed:
    """Put a variant in the place of a module, unless it is refused.

    Args:
        exportable: the module.
        wanted: the variant.
        site: where it runs.
        refused_too: use a wrong or slower variant too, to measure it.

    Raises:
        ConfigError: what the variant needs is not there.
    """
    check_installed(wanted)
    if wanted.backend == "tensorrt":
        torch_backends.check_tensorrt(site.device)
    if wanted.backend == "eager" and wanted.precision == "float":
        return Installed()
    variant = _Variant(exportable, wanted, site)
    found = variant.cached()
    build_s = 0.0
    if found is None:
        started = time.monotonic()
        with variant.store.noted("", variant.key) as note:
            found = variant.cached() or variant.build_or_refuse()
            note.write("", variant.key)
        build_s = time.monotonic() - started
        variant.store.prune(unused_s=UNUSED_KEEP_S)
    used = (refused_too or not found.refused) and variant.use()
    return Installed(found, build_s, used, wanted.name)


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
        threads = torch.get_num_threads()
        settings = {**site.settings, "most": site.most, "sizes": site.sizes}
        self.key = cache.build_key(wanted, self._module, site.device, settings)
        self.store = UnpackedModels(site.cache)
        self._verdict_name = cache.verdict_name(wanted, threads)
        self._threads = threads

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
            return self.build()
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            return Verdict(refused=f"it cannot be built now: {_short(error)}")

    def build(self) -> Verdict:
        """Build the variant unless that is done, compare it with the module, keep the verdict."""
        samples = self._site.samples()
        example = samples.timed[max(samples.timed)]
        form = form_of(self._module, example, self._exportable.dims)
        source = self._source(form, example, samples)
        folder = self.store.add(self.key, lambda folder: self._fill(source, folder))
        verdict = self._judged(folder, samples)
        path = folder / self._verdict_name
        temporary = path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(verdict))
        temporary.replace(path)
        return verdict

    def use(self) -> bool:
        """Put the variant in the module's place; return whether that was possible."""
        folder = self.store.hold(self.key)
        try:
            if folder is not None and not (folder / _FAILED).exists():
                self._exportable.use(self._loaded(folder))
                return True
        except Exception as error:  # noqa: BLE001 - the model runs eager
            logger.warning(
                "optimize: %s cannot be loaded, so the model runs eager: %s; remove %s to build "
                "it again",
                self._wanted.name, _short(error), folder, extra={"model": self._site.model},
            )  # fmt: skip
        return False

    def _judged(self, folder: Path, samples: Samples) -> Verdict:
        if (folder / _FAILED).exists():
            return Verdict(refused=(folder / _FAILED).read_text(encoding="utf-8"))
        try:
            return compare(
                self._module, self._loaded(folder), samples.calls, samples.timed,
                self._exportable.scores, self._wanted.error_limit,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the model runs eager
            return Verdict(refused=f"it cannot run: {_short(error)}")

    def _fill(self, source: Source, folder: Path) -> None:
        """Build into a folder; a failure is written there, so that no other process tries again."""
        (folder / _FORM).write_bytes(msgspec.json.encode(source.form))
        logger.info("optimize: %s is built", self._wanted.name, extra={"model": self._site.model})
        try:
            self._backend.build(source, folder)
        except (OSError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - an exporter raises anything; the model runs eager
            text = f"it cannot be built: {_short(error)}"
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


def check_installed(wanted: Optimize) -> None:
    """Check that the packages of a backend are installed.

    Raises:
        ConfigError: one is missing; the message names the extra to install.
    """
    extra, names = EXTRAS.get(wanted.backend, ("", ()))
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"optimize: the backend {wanted.backend} needs packages that are not installed: "
            f"{', '.join(missing)}",
            hint=f"pip install 'headrace[{extra}]'",
        )


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]} ..."
