"""Reads the options of a model, and finds those that are wrong or do not go together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.config.inputs.input_schema import read_keys
from headrace.config.inputs.parameters import WITHHELD_HEADERS, read_parameters
from headrace.config.model.handler_reference import parse_handler
from headrace.config.model.optimize import Optimize, optimize_problem
from headrace.config.model.traffic import read_traffic
from headrace.config.suggestions import listing
from headrace.config.yaml_file import Document, read_fields, shown
from headrace.errors import ConfigError
from headrace.jobs.ids import VERSION, VERSION_GRAMMAR

_VERSION: Final = re.compile(VERSION)


def read_options(
    document: Document, keys: tuple[str, ...], struct: type[msgspec.Struct], folder: Path
) -> dict[str, Any]:
    """Return the valid options of the model at these keys; report the mistakes in the others.

    Paths of schemas refer to `folder`.
    """
    values = read_keys(document, keys, struct, folder, leave=("parameters", "traffic", "optimize"))
    section = document.at(keys)
    if isinstance(section, dict):
        _read_sections(document, keys, section, values)
    for key, text in (*_value_problems(values), *option_problems(values)):
        document.report((*keys, key), text)
    return values


def _read_sections(
    document: Document, keys: tuple[str, ...], section: Mapping[Any, Any], values: dict[str, Any]
) -> None:
    if "parameters" in section:
        values["parameters"] = read_parameters(document, (*keys, "parameters"))
    if section.get("traffic") is not None:
        try:
            values["traffic"] = read_traffic(section["traffic"])
        except ValueError as error:
            document.report((*keys, "traffic"), str(error))
    if section.get("optimize") is not None:
        values["optimize"] = Optimize(**read_fields(document, (*keys, "optimize"), Optimize))


def _value_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of values that are wrong by themselves, with what is wrong."""
    if withheld := WITHHELD_HEADERS.intersection(values.get("headers", ())):
        text = f"no handler gets {listing(withheld)}, which may hold secrets or belong to a proxy"
        yield "headers", f"{text}; remove it"
    version = values.get("version", "")
    if version and not _VERSION.fullmatch(version):
        yield "version", f"{shown(version)} is part of a queue's name: it has {VERSION_GRAMMAR}"
    if values.get("handler") is not None:
        try:
            parse_handler(values["handler"])
        except ConfigError as error:
            yield "handler", f"{error.message}; {error.hint}"
    for key in ("handler", "weights"):
        try:
            Path(values.get(key) or "").expanduser()
        except RuntimeError:
            home = values[key].partition("/")[0]
            yield key, f"{shown(home)} is no user's folder on this host; write the folder's path"
    # They are sent to the model process as msgpack.
    try:
        msgspec.msgpack.encode(values.get("options"))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = "it contains itself" if isinstance(error, RecursionError) else str(error)
        yield "options", f"not plain data: {text}"


def option_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of options that do not go together, with what is wrong."""
    yield from _batch_problems(values)
    yield from _replica_problems(values)
    if "max_queued_tokens" in values and values.get("schedule") != "tokens":
        yield "max_queued_tokens", "it needs `schedule: tokens`; add that key"
    wanted = values.get("optimize")
    if isinstance(wanted, Optimize) and (text := optimize_problem(wanted)):
        yield "optimize", text


def _batch_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sizes, most = values.get("allowed_batch_sizes"), values.get("max_batch_size")
    if sizes is not None and len(set(sizes)) < len(sizes):
        yield "allowed_batch_sizes", "a size is given twice; remove one"
    if sizes is not None and most is not None and max(sizes) != most:
        yield (
            "allowed_batch_sizes",
            f"the largest is {max(sizes)}, but max_batch_size is {most}; make them the same, "
            "or leave max_batch_size out",
        )
    if "cost" in values and "max_batch_cost" not in values:
        yield "cost", "it needs max_batch_cost; add that key"


def _replica_problems(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    most = values.get("max_replicas")
    if most is None:
        for key in ("min_replicas", "scale_down_s"):
            if values.get(key) is not None:
                yield key, "it needs max_replicas; add that key"
        return
    if values.get("total_replicas") is not None:
        yield "max_replicas", "it does not go with total_replicas; leave one of them out"
    if values.get("min_replicas") == 0 and values.get("load") != "on_demand":
        yield "min_replicas", "0 needs `load: on_demand`; add that key, or give 1 or more"
    for key in ("min_replicas", "replicas"):
        given = values.get(key)
        if isinstance(given, int) and given > most:
            yield key, f"it is {given}, more than max_replicas, {most}; change one of them"
