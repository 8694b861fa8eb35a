"""What an extension adds to model processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.config.extensions import parts
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.config.model.handler_reference import HandlerReference
from headrace.handler import Handler


@dataclass(frozen=True, kw_only=True)
class HandlerPart:
    """The handlers of an extension: `NAME:...` in a model's `handler`.

    Attributes:
        load: returns the handler of a reference; the path is the folder of its model. It may add
            to `sys.path`, as the process serves no other model.
        folder: the files of its handlers. A failure names a place in the author's code before one
            of these.
        leading: those of its files that only call the author's code: no traceback shows them.
    """

    load: Callable[[HandlerReference, Path], Handler]
    folder: Path
    leading: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorPart:
    """Reads and writes tensors, for the models that declare them.

    Attributes:
        read: returns an input as the handler gets it. Its arguments are bytes of `TENSORS_TYPE` or
            a JSON value, the content type, and the declared inputs. It raises InvalidRequest.
        write: returns what is sent as the result. Its arguments are what the handler returned, the
            input as `read` returned it, and the declared outputs. It raises a JobError.
    """

    read: Callable[[Any, str, Sequence[DeclaredTensor]], Any]
    write: Callable[[Any, Any, Sequence[DeclaredTensor]], Any]


@cache
def tensor_parts() -> dict[str, TensorPart]:
    """Return the parts of all extensions, by the extension's name."""
    return parts("tensors", TensorPart)


@cache
def handler_parts() -> dict[str, HandlerPart]:
    """Return the parts of all extensions, by the extension's name."""
    return parts("handlers", HandlerPart)
