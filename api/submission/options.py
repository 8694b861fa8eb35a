"""Read a job's options from the query or from JSON; an unknown name suggests the nearest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from api.http.messages import unknown_name
from headrace.errors import InvalidRequest
from headrace.jobs.options import DEFAULT_OPTIONS, METADATA_MAX_BYTES, JobOptions

OPTION_NAMES: Final = frozenset(JobOptions.__struct_fields__)

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_AT = re.compile(r" - at `\$\.?(.*)`$")

Shape = TypeVar("Shape")


def options_from_query(given: Mapping[str, str]) -> JobOptions:
    """Return the options among a query's parameters.

    Raises:
        InvalidRequest: an option is not valid.
    """
    if not given:
        return DEFAULT_OPTIONS
    values: dict[str, Any] = {name: text for name, text in given.items() if name in OPTION_NAMES}
    if not values:
        return DEFAULT_OPTIONS
    for name, text in values.items():
        # msgspec would take it for an absent option; it is rather an unset variable.
        if text.lower() == "null":
            raise InvalidRequest(
                f"query parameter {name}: null is not a value", hint="Leave it out for the default."
            )
    if "metadata" in values:
        try:
            values["metadata"] = msgspec.json.decode(values["metadata"])
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"the query parameter metadata is not JSON: {error}",
                hint='Give a JSON object, percent-encoded, such as {"batch":7}.',
            ) from None
    if "webhook_events" in values:
        values["webhook_events"] = values["webhook_events"].split(",")
    try:
        options = msgspec.convert(values, JobOptions, strict=False)
    except msgspec.ValidationError as error:
        raise validation_error(error, "query parameter", OPTION_NAMES) from None
    return check_options(options)


def check_options(options: JobOptions) -> JobOptions:
    """Check what the types of the options cannot express, and return them.

    Raises:
        InvalidRequest: the metadata is too large.
    """
    if options.metadata is not None:
        size = len(msgspec.json.encode(options.metadata))
        if size > METADATA_MAX_BYTES:
            raise InvalidRequest(
                f"metadata has {size} bytes as JSON, more than {METADATA_MAX_BYTES}",
                hint="Keep large data elsewhere and its key in metadata.",
            )
    return options


def validation_error(
    error: msgspec.ValidationError, what: str, known: frozenset[str]
) -> InvalidRequest:
    """Return a msgspec error as an InvalidRequest that names the member at fault."""
    text = str(error)
    at = _AT.search(text)
    where = at.group(1) if at else ""
    text = _AT.sub("", text)
    unknown = _UNKNOWN.fullmatch(text)
    if unknown:
        names = OPTION_NAMES if where == "options" else known
        return unknown_name("option" if where == "options" else what, unknown.group(1), names)
    text = text[:1].lower() + text[1:]
    return InvalidRequest(f"{what} {where}: {text}" if where else text)
