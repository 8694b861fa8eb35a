"""What a model takes and returns, as the protocols show it and check requests by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from extensions.inference_protocols.tensors.datatypes import BYTES
from headrace.config.inputs.tensors import ANY_SIZE, DeclaredTensor, has_rows
from headrace.config.model.catalog import ModelConfig

#: The tensors of a model that declares none: its whole input and its whole result.
INPUT: Final = DeclaredTensor(name="data", datatype=BYTES, shape=[1])
OUTPUT: Final = DeclaredTensor(name="result", datatype=BYTES, shape=[1])


class Declaration(NamedTuple):
    """The tensors of a model.

    Attributes:
        model: the name by which errors know it.
        outputs: empty where it has not declared them.
        rows_max: how many rows a request may have; 0 if its tensors have no rows.
        native: it declares no tensors, so that its input and its result are one value of BYTES.
    """

    model: str
    inputs: Sequence[DeclaredTensor] = (INPUT,)
    outputs: Sequence[DeclaredTensor] = (OUTPUT,)
    rows_max: int = 0
    native: bool = True

    def dims_of(self, tensor: DeclaredTensor) -> list[int]:
        """Return the shape of one row of a tensor, as Triton's configuration has it."""
        return tensor.shape[1:] if self.rows_max else tensor.shape


def declaration_of(model: ModelConfig) -> Declaration:
    """Return what a model declares."""
    tensors = model.inputs.tensors if model.inputs is not None else None
    if tensors is None:
        return Declaration(model.name)
    outputs = (model.outputs.tensors if model.outputs is not None else None) or ()
    rows_max = model.max_batch_size if has_rows(tensors) else 0
    return Declaration(model.name, tensors, outputs, rows_max, native=False)


def fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    """Return whether a shape is one of a declared tensor."""
    return len(shape) == len(declared) and all(
        size in (found, ANY_SIZE) for size, found in zip(declared, shape, strict=True)
    )
