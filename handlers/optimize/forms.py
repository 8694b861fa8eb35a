"""What a module takes and returns, so that another form of it can take its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from typing_extensions import override

from headrace.errors import ConfigError

#: The arguments of one call of the module.
Args = tuple[Tensor, ...]
#: Runs a variant: the outputs of the module, flat.
Run = Callable[[Args], Sequence[Tensor]]

BATCH: Final = "batch"


class InputForm(msgspec.Struct, frozen=True):
    """One input of a module.

    Attributes:
        dtype: its type, without "torch.".
        shape: the sizes of its dimensions at the build.
        channels_last: whether its memory format is channels last.
        dims: the names of the dimensions whose size differs from call to call.
    """

    dtype: str
    shape: list[int]
    channels_last: bool
    dims: dict[int, str]

    def takes(self, value: Any) -> bool:
        """Return whether a variant that was built for this form takes a value."""
        return (
            isinstance(value, Tensor)
            and dtype_name(value.dtype) == self.dtype
            and value.ndim == len(self.shape)
            and all(n in self.dims or value.shape[n] == size for n, size in enumerate(self.shape))
        )

    def laid_out(self, value: Tensor) -> Tensor:
        """Return a tensor in the memory format of the build, which compiled code relies on."""
        order = torch.channels_last if self.channels_last else torch.contiguous_format
        return value.contiguous(memory_format=order)

    def zeros(self, batch: int, device: str) -> Tensor:
        """Return zeros as an input of a batch of this size."""
        shape = [batch if self.dims.get(n) == BATCH else size for n, size in enumerate(self.shape)]
        dtype = getattr(torch, self.dtype)
        return self.laid_out(torch.zeros(shape, dtype=dtype, device=device))


class Form(msgspec.Struct, frozen=True):
    """What a module takes and returns: the types of its tensors, flat, and their torch tree."""

    inputs: list[InputForm]
    outputs: list[str]
    tree: str

    def batch_of(self, args: Sequence[Tensor]) -> int:
        """Return the batch size of a call."""
        for form, value in zip(self.inputs, args, strict=True):
            for n, name in form.dims.items():
                if name == BATCH:
                    return value.shape[n]
        return 1


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type, without "torch."."""
    return str(dtype).removeprefix("torch.")


def form_of(
    module: nn.Module, args: Args, dims: Sequence[Mapping[int, str]], *, batches: bool = True
) -> Form:
    """Return what a module takes and returns, of one call.

    Args:
        dims: as of an `Exportable`.
        batches: whether batches differ in size; else the size is that of this call.

    Raises:
        ConfigError: it takes or returns something else than tensors.
    """
    if not args or not all(isinstance(one, Tensor) for one in args):
        raise ConfigError(
            "optimize: the module must be called with tensors as positional arguments",
            hint="leave `optimize` out for this model",
        )
    named = dims or [{0: BATCH}] * len(args)
    with torch.inference_mode():
        leaves, tree = pytree.tree_flatten(module(*args))
    if not leaves or not all(isinstance(one, Tensor) for one in leaves):
        raise ConfigError(
            "optimize: the module must return tensors, in lists or mappings if there are several",
            hint="leave `optimize` out for this model",
        )
    inputs = [
        InputForm(
            dtype_name(one.dtype),
            list(one.shape),
            one.ndim == 4
            and not one.is_contiguous()
            and one.is_contiguous(memory_format=torch.channels_last),
            {n: name for n, name in names.items() if batches or name != BATCH},
        )
        for one, names in zip(args, named, strict=True)
    ]
    outputs = [dtype_name(one.dtype) for one in leaves]
    return Form(inputs, outputs, pytree.treespec_dumps(tree))


class Flat(nn.Module):
    """A module whose output is a tuple of tensors, with its floats in another type if one is given.

    With a type it returns float32, as other runtimes know no bfloat16.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module = module
        self.dtype = dtype

    @override
    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the module."""
        if self.dtype is None:
            return tuple(pytree.tree_leaves(self.module(*args)))
        cast = [one.to(self.dtype) if one.is_floating_point() else one for one in args]
        found = pytree.tree_leaves(self.module(*cast))
        return tuple(one.float() if one.is_floating_point() else one for one in found)


class Replacement:
    """Runs a variant in the place of a module.

    A call that the variant was not built for runs the module itself. So no call makes anything new:
    everything is compiled at the load.
    """

    def __init__(self, module: nn.Module, form: Form, run: Run) -> None:
        self.module = module
        self.run = run
        self._form = form
        self._tree = pytree.treespec_loads(form.tree)
        self._types = [getattr(torch, name) for name in form.outputs]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module would."""
        forms = self._form.inputs
        if kwargs or len(args) != len(forms) or not all(map(InputForm.takes, forms, args)):
            return self.module(*args, **kwargs)
        found = self.run(tuple(map(InputForm.laid_out, forms, args)))
        if len(found) != len(self._types):
            raise ConfigError(
                f"it returns {len(found)} tensors, and the module returns {len(self._types)}"
            )
        outputs = [one.to(dtype) for one, dtype in zip(found, self._types, strict=True)]
        return pytree.tree_unflatten(outputs, self._tree)


def floats(outputs: Iterable[Any]) -> list[Tensor]:
    """Return the floating-point tensors of a module's output, as float32."""
    leaves = pytree.tree_leaves(outputs)
    return [one.float() for one in leaves if isinstance(one, Tensor) and one.is_floating_point()]
