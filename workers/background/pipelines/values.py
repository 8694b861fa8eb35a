"""The values that stages of a pipeline pass on: JSON text, or references to stored payloads.

A stored payload is not copied: a value refers to a range of it, and a combined value refers to
several ranges. Independent of Redis.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import msgspec

from headrace.config.inputs.json_path import Step, find, path_text
from headrace.errors import InvalidRequest
from headrace.jobs.job import Job
from headrace.jobs.message import InputSource, PayloadRange
from headrace.jobs.values.encoding import kombu_base64
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.response import split_details

#: Reads a range of a payload that is JSON text.
Read = Callable[[PayloadRange], Awaitable[bytes]]


class TextValue(NamedTuple):
    """A JSON value as text."""

    data: bytes


class BinaryValue(NamedTuple):
    """Short data that is not JSON: its content type, and its bytes in base64."""

    type: str
    base64: str


class StoredValue(NamedTuple):
    """A whole payload in the payload store, or a range of one."""

    at: PayloadRange
    whole: bool = False


class ExternalValue(NamedTuple):
    """The operator's own file or object (`input_ref`), which can only be passed on whole."""

    source: InputSource


class ListValue(NamedTuple):
    """A list of values."""

    values: tuple[Value, ...]


class ObjectValue(NamedTuple):
    """An object of values."""

    values: tuple[tuple[str, Value], ...]


Value = TextValue | BinaryValue | StoredValue | ExternalValue | ListValue | ObjectValue


def value_of(job: Job) -> Value:
    """Return the result of a job that succeeded; raise ValueError if it is gone or differs."""
    if job.stored is not None:
        ref, size, kind = job.stored
        kind, _ = split_details(kind)
        return StoredValue(
            PayloadRange(ref, 0, size, "" if kind == JSON_TYPE else kind), whole=True
        )
    result = job.result_json
    if result is None:
        raise ValueError(f"the result of the job {job.id} is gone")
    if job.result_type:
        return BinaryValue(split_details(job.result_type)[0], kombu_base64(result))
    return TextValue(result)


def parts_of(value: Value) -> list[str | PayloadRange]:
    """Return the parts of the value's JSON text; neighbouring texts are joined."""
    parts: list[str | PayloadRange] = []
    text: list[str] = []
    for part in _parts(value):
        if isinstance(part, str):
            text.append(part)
            continue
        if text:
            parts.append("".join(text))
            text = []
        parts.append(part)
    return [*parts, "".join(text)] if text else parts


def _parts(value: Value) -> Iterator[str | PayloadRange]:
    match value:
        case TextValue():
            yield value.data.decode()
        case BinaryValue():
            yield msgspec.json.encode({"content_type": value.type, "base64": value.base64}).decode()
        case StoredValue():
            yield value.at
        case ExternalValue():
            raise InvalidRequest("an input_ref can only be passed on whole and alone")
        case ListValue():
            yield "["
            for n, item in enumerate(value.values):
                yield "," if n else ""
                yield from _parts(item)
            yield "]"
        case ObjectValue():
            yield "{"
            for n, (name, item) in enumerate(value.values):
                yield ("," if n else "") + msgspec.json.encode(name).decode() + ":"
                yield from _parts(item)
            yield "}"


async def follow(
    value: Value, steps: tuple[Step, ...], read: Read, short_bytes: int
) -> list[Value]:
    """Return the values at a path.

    A part of a payload up to `short_bytes` becomes text, a longer part a reference.

    Raises:
        InvalidRequest: the path leads nowhere.
    """
    done: tuple[Step, ...] = ()
    values = [value]
    for n, step in enumerate(steps):
        reached: list[Value] = []
        for container in values:
            if isinstance(container, (ListValue, ObjectValue)):
                reached += _among(container, step, path_text((*done, step)))
                continue
            return [
                leaf for each in values for leaf in await _rest(each, steps[n:], read, short_bytes)
            ]
        values, done = reached, (*done, step)
    return values


async def _rest(value: Value, steps: tuple[Step, ...], read: Read, short_bytes: int) -> list[Value]:
    """Follow the remaining steps, which are all within JSON text."""
    match value:
        case TextValue():
            return [
                TextValue(value.data[span.start : span.end]) for span in find(value.data, steps)
            ]
        case StoredValue() if not value.at.type:
            text = await read(value.at)
            begin = value.at.start
            return [
                TextValue(text[start:end])
                if end - start <= short_bytes
                else StoredValue(PayloadRange(value.at.ref, begin + start, end - start))
                for start, end in find(text, steps)
            ]
        case ListValue() | ObjectValue():
            return await follow(value, steps, read, short_bytes)
        case ExternalValue():
            raise InvalidRequest("a path cannot lead into an input_ref; send the input itself")
    raise InvalidRequest(f"{path_text(steps)} not found: the value is not JSON")


def _among(value: ListValue | ObjectValue, step: Step, shown: str) -> list[Value]:
    if isinstance(value, ObjectValue):
        members = [member for name, member in value.values if name == step]
        if not members:
            raise InvalidRequest(f"{shown} not found")
        return members
    if step is None:
        return list(value.values)
    if isinstance(step, str) or step >= len(value.values):
        raise InvalidRequest(f"{shown} not found: the list has {len(value.values)} elements")
    return [value.values[step]]
