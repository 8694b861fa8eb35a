"""What a wrong name or value should have been, for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from headrace.errors import ModelNotFound

NAMES_SHOWN: Final = 10


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or "" if no known name is similar."""
    # Imported here because most settings are right.
    import difflib

    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def listing(names: Iterable[str]) -> str:
    """Return up to ten names in order, with commas; `none` without names."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN
    shown = ", ".join(ordered[:NAMES_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown or "none"


def unknown_model(name: str, known: Iterable[str]) -> ModelNotFound:
    """Return the error for a model that does not exist; its hint lists those that do."""
    names = list(known)
    return ModelNotFound(
        f"no model {name[:64]!r} is registered{did_you_mean(name[:64], names)}",
        hint=f"use one of {listing(names)}",
    )


def unknown_version(model: str, version: str, known: Sequence[str]) -> ModelNotFound:
    """Return the error for a version that a model does not have; its hint lists those it has."""
    plural = "version is" if len(known) == 1 else "versions are"
    return ModelNotFound(
        f"model {model} has no version {version[:64]!r}", hint=f"Its {plural} {listing(known)}."
    )


#: How msgspec names a limit: `>= 1`.
_LIMIT: Final = re.compile(r"[Ee]xpected `(?:int|float)` (<=|>=|<|>) (\S+)")


def value_problem(value: object, error: msgspec.ValidationError, kind: Any) -> str:
    """Return why msgspec refuses a value as `kind`, such as `99 is too large; give at most 9`."""
    found = _LIMIT.search(str(error))
    if found is None:
        text = str(error).partition(" - at ")[0]
        problem = not_a_choice(error, kind).partition(": ")[2]
        return f"{value}: {problem or text[:1].lower() + text[1:]}"
    if value != value:
        return f"{value} is not a number"
    limit = found[2].removesuffix(".0")
    if "<" in found[1]:
        return f"{value} is too large; give {'less than' if found[1] == '<' else 'at most'} {limit}"
    return f"{value} is too small; give {'more than' if found[1] == '>' else 'at least'} {limit}"


#: What msgspec reports of a value that is not in an enumeration, and where.
_NOT_ONE: Final = re.compile(r"Invalid enum value (.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"[^.\[\]]+|\[\.\.\.\]")


def not_a_choice(error: msgspec.ValidationError, kind: Any) -> str:
    """Return such as `expected true, false or auto, got 'off'`, with the values of an enumeration.

    It is "" if the error is about something else.

    Args:
        kind: the type of which the value should be.
    """
    found = _NOT_ONE.fullmatch(str(error))
    if found is None:
        return ""
    value, where = found[1], found[2] or ""
    allowed = [
        word
        for one in _types_at(inspect.type_info(kind), _STEP.findall(where))
        for word in _words(one)
    ]
    if not allowed:
        return ""
    *others, last = dict.fromkeys(allowed)
    text = f"{', '.join(others)} or {last}" if others else last
    return f"{where}: expected {text}, got {value}" if where else f"expected {text}, got {value}"


def allowed_values(kind: Any, where: str) -> str:
    """Return which values a place takes, such as `a whole number from 0 to 9`; "" for any.

    Args:
        kind: the type of the whole value.
        where: as msgspec names a place in it, without `$.`.
    """
    found = list(_types_at(inspect.type_info(kind), _STEP.findall(where)))
    words = [text for info in found if (text := _in_words(info))]
    return _either(words)


def _either(words: Iterable[str]) -> str:
    *others, last = dict.fromkeys(words) or [""]
    return f"{', '.join(others)} or {last}" if others else last


def _in_words(info: inspect.Type) -> str:
    if isinstance(info, (inspect.LiteralType, inspect.EnumType, inspect.BoolType)):
        return _either(filter(None, _words(info)))
    if isinstance(info, (inspect.IntType, inspect.FloatType)):
        return _number_in_words(info)
    if isinstance(info, inspect.StrType):
        return f"a text{_length(info, 'characters')}"
    if isinstance(info, (inspect.StructType, inspect.DictType)):
        return "an object"
    if isinstance(info, inspect.CollectionType):
        each = _either(filter(None, map(_in_words, _types_at(info.item_type, ()))))
        return f"a list{_length(info, 'entries')}{each and f', each {each}'}"
    return ""


def _length(info: inspect.StrType | inspect.CollectionType, unit: str) -> str:
    least, most = info.min_length or 0, info.max_length
    if most is not None:
        return f" of {least} to {most} {unit}"
    return f" of at least {least} {unit}" if least else ""


def _number_in_words(info: inspect.IntType | inspect.FloatType) -> str:
    name = "a whole number" if isinstance(info, inspect.IntType) else "a number"
    if info.ge is not None and info.le is not None:
        return f"{name} from {info.ge:.15g} to {info.le:.15g}"
    limits = {"at least": info.ge, "above": info.gt, "at most": info.le, "below": info.lt}
    bounds = [f"{word} {limit:.15g}" for word, limit in limits.items() if limit is not None]
    return f"{name} that is {' and '.join(bounds)}" if bounds else name


def _types_at(info: inspect.Type, path: Sequence[str]) -> Iterator[inspect.Type]:
    """Yield the types that a value at a path may have."""
    if isinstance(info, inspect.Metadata):
        yield from _types_at(info.type, path)
    elif isinstance(info, inspect.UnionType):
        for one in info.types:
            yield from _types_at(one, path)
    elif not path:
        yield info
    elif isinstance(info, inspect.StructType):
        for field in info.fields:
            if field.encode_name == path[0]:
                yield from _types_at(field.type, path[1:])
    elif isinstance(info, inspect.DictType):
        yield from _types_at(info.value_type, path[1:])
    elif isinstance(info, inspect.CollectionType):
        yield from _types_at(info.item_type, path[1:])


def _words(info: inspect.Type) -> Iterator[str]:
    if isinstance(info, inspect.LiteralType):
        yield from map(str, info.values)
    elif isinstance(info, inspect.EnumType):
        yield from (str(member.value) for member in info.cls)
    elif isinstance(info, inspect.BoolType):
        yield from ("true", "false")
    elif isinstance(info, (inspect.IntType, inspect.FloatType)):
        least = "" if info.ge is None else f" >= {info.ge}"
        yield f"{'int' if isinstance(info, inspect.IntType) else 'float'}{least}"
