"""What a backend builds from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from handlers.optimize.forms import Args, Flat, Form
from headrace.config.model.optimize import Optimize

_TYPES: Final = {"half": torch.float16, "bfloat16": torch.bfloat16}
_PARTS_WITH_WEIGHTS: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Source:
    """A module, and the facts about its use that a backend needs.

    Attributes:
        example: the arguments of a full batch.
        calibration: arguments of real calls.
        sizes: the batch sizes of its calls, ascending; empty for any up to `most`.
    """

    wanted: Optimize
    module: nn.Module
    form: Form
    example: Args = ()
    calibration: tuple[Args, ...] = ()
    sizes: tuple[int, ...] = ()
    most: int = 1
    device: str = "cpu"
    threads: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return self.device == "cpu"

    @cached_property
    def flat(self) -> Flat:
        """Return the module with a flat output, in the precision of the variant."""
        dtype = _TYPES.get(self.wanted.precision)
        if dtype is None:
            return Flat(self.module).eval()
        return Flat(copy.deepcopy(self.module).to(dtype), dtype).eval()

    @property
    def has_convolutions(self) -> bool:
        """Whether the module has convolutions."""
        return any(isinstance(part, _PARTS_WITH_WEIGHTS) for part in self.module.modules())

    def open_dims(self) -> tuple[dict[int, Any], ...]:
        """Return the dimensions of the example that stay open in an exported program.

        They have no largest size: where the compiler asks if a batch has 16 items at least, a
        largest batch of 16 would fix the size at 16.
        """
        # The names are shared: two inputs have the same batch.
        names = {name for one in self.form.inputs for name in one.dims.values()}
        dims = {name: torch.export.Dim(name, min=1) for name in sorted(names)}
        return tuple(
            {n: dims[name] for n, name in one.dims.items() if name in dims}
            for one in self.form.inputs
        )

    def exported(self, module: Flat) -> Any:
        """Return the module as a program of `torch.export`."""
        with torch.no_grad(), quiet():
            return torch.export.export(
                module, self.example, dynamic_shapes=(self.open_dims(),), strict=False
            )


class Backend(NamedTuple):
    """How a backend makes a variant: `build` writes into a folder, of which `load` returns it."""

    build: Any
    load: Any


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings of an exporter about its own parts; the check decides if it is right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
