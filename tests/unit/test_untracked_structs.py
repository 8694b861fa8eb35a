"""Structs that the garbage collector does not see hold nothing that could lead back to them.

A cycle through such a struct is never freed. An error holds its traceback, the traceback its
frames, and a frame the struct that holds the error.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import api
import extensions
import headrace
import workers

#: What refers to nothing else, or to text alone.
LEAVES = (
    str, bytes, int, float, bool, type(None), enum.Enum, msgspec.Raw, msgspec.UnsetType,
)  # fmt: skip
CONTAINERS = (tuple, list, set, frozenset, dict)
#: Fields of any type, which only a decoder of JSON or YAML fills: what it makes holds no struct.
DECODED = {
    "Embed.callbacks",
    "Embed.chain",
    "Embed.chord",
    "Embed.errbacks",
    "Headers.traceparent",
    "Headers.tracestate",
    "InputSection.example",
    "InputSection.fields",
    "InputSection.schema",
    "JobOptions.metadata",
    "ModelConfig.options",
    "OutputSection.example",
    "OutputSection.fields",
    "OutputSection.schema",
}


def structs() -> Iterator[type[msgspec.Struct]]:
    """Every struct of the servers and the client that the collector does not track."""
    for module in [
        module for package in (api, extensions, headrace, workers) for module in modules(package)
    ]:
        for found in filter(inspect.isclass, vars(module).values()):
            if issubclass(found, msgspec.Struct) and not found.__struct_config__.gc:
                yield found


def modules(package: types.ModuleType) -> Iterator[types.ModuleType]:
    """Every module below a package; `headrace._server` has those of the servers again."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        # Handlers import torch.
        if found.name.endswith(("__main__", ".handlers", "headrace._server")):
            continue
        module = importlib.import_module(found.name)
        yield module
        if found.ispkg:
            yield from modules(module)


def is_record(kind: type) -> bool:
    return (
        issubclass(kind, msgspec.Struct)
        or dataclasses.is_dataclass(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def cyclic(kind: Any, field: str, seen: tuple[type, ...] = ()) -> Iterator[str]:
    """The fields that may hold a cycle."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType) or origin in CONTAINERS:
        for argument in arguments:
            yield from cyclic(argument, field, seen)
    elif origin is typing.Literal or kind is Ellipsis or field in DECODED:
        return
    elif origin is not None or not inspect.isclass(kind):
        yield f"{field}: {kind}"
    elif issubclass(kind, LEAVES) or kind in seen:
        return
    elif is_record(kind):
        for name, of in typing.get_type_hints(kind).items():
            if typing.get_origin(of) is not typing.ClassVar:
                yield from cyclic(of, f"{kind.__name__}.{name}", (*seen, kind))
    else:
        yield f"{field}: {kind}"


def test_no_field_leads_back() -> None:
    found = set(structs())
    assert len(found) > 20
    assert [field for struct in found for field in cyclic(struct, "")] == []


class Kept(msgspec.Struct, gc=False):
    """What the rule is against."""

    error: ValueError | None = None
    calls: dict[str, Callable[[], None]] = {}
    anything: tuple[Any, ...] = ()
    inner: Kept | None = None


def test_what_could_lead_back_is_found() -> None:
    found = [one.partition(":")[0] for one in cyclic(Kept, "")]
    assert found == ["Kept.error", "Kept.calls", "Kept.anything"]
