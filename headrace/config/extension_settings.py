"""The values of extensions in the settings.

A value has the type that its extension names, and the extension's name as its key. A struct has a
variable for each of its fields, a simple type has one. Variables win, field by field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_origin

import msgspec

from headrace.config.extensions import found, settings_types
from headrace.config.suggestions import did_you_mean
from headrace.config.yaml_file import Document, convert, read_fields, read_value


def values_in_file(
    document: Document, keys: Sequence[str], core_keys: Collection[str]
) -> dict[str, Any]:
    """Return the values at these keys, a struct as its fields; report what does not fit.

    Values of extensions that cannot be used are left alone: such an extension stops nothing.
    """
    types, values = settings_types(), dict[str, Any]()
    for key in keys:
        if is_struct(types.get(key)):
            values[key] = read_fields(document, (key,), types[key])
        elif key in types:
            read_value(document, (key,), document.data[key], types[key], values)
        elif key not in found().problems:
            near = did_you_mean(str(key), [*core_keys, *types])
            document.report((key,), f"unknown key{near}")
    return values


def values_in_variables(
    environ: Mapping[str, str], prefix: str, core_variables: Collection[str], problems: list[str]
) -> dict[str, Any]:
    """Return the values that these variables have, as `values_in_file` does."""
    known, values = variables(prefix), dict[str, Any]()
    others = other_variables()
    unusable = tuple(prefix + name.upper() for name in found().problems)
    for variable, text in environ.items():
        if variable not in known:
            if variable not in others and not variable.startswith(unusable):
                near = did_you_mean(variable, [*core_variables, *known, *others])
                problems.append(f"environment: {variable}: unknown variable{near}")
        elif text:
            name, key, kind = known[variable]
            into, place = (values.setdefault(name, {}), key) if key else (values, name)
            try:
                into[place] = convert(_items(text, kind), kind, strict=False)
            except ValueError as error:
                problems.append(f"environment: {variable}: {error}")
    return values


def variables(prefix: str) -> dict[str, tuple[str, str, Any]]:
    """Return the extension, the field ("" if it has none) and the type of each variable."""
    result: dict[str, tuple[str, str, Any]] = {}
    for name, kind in settings_types().items():
        if is_struct(kind):
            for item in msgspec.structs.fields(kind):
                result[f"{prefix}{name}_{item.name}".upper()] = (name, item.name, item.type)
        else:
            result[f"{prefix}{name}".upper()] = (name, "", kind)
    return result


def other_variables() -> set[str]:
    """Return the variables of extensions that are not settings."""
    return {name for extension in found().extensions.values() for name in extension.variables}


def combined(
    file: Mapping[str, Any], variables: Mapping[str, Any], problems: list[str]
) -> dict[str, Any]:
    """Return the value of each extension that has one."""
    result = {**file, **variables}
    for name in result:
        kind = settings_types()[name]
        if is_struct(kind):
            try:
                result[name] = kind(**{**file.get(name, {}), **variables.get(name, {})})
            except ValueError as error:
                problems.append(f"{name}: {error}")
    return result


def is_struct(kind: Any) -> bool:
    """Return whether a type is a struct."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _items(text: str, kind: Any) -> object:
    """Return the items of a list, which a variable separates by commas; another text as it is."""
    if get_origin(kind) not in (list, tuple):
        return text
    return [item.strip() for item in text.split(",") if item.strip()]
