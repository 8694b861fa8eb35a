"""Words of our own for numbers that a command line cannot have."""

from __future__ import annotations

import re
from typing import Any, Final

from typer import BadParameter
from typer.core import TyperCommand
from typing_extensions import override

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: How msgspec names a limit: `>= 1`.
_LIMIT: Final = re.compile(r"[Ee]xpected `(?:int|float)` (<=|>=|<|>) (\S+)")


class NumbersCommand(TyperCommand):
    """A command whose errors about numbers name what to give."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            if message := _message(error):
                error.message = message
            raise


def parsed_seconds(text: str) -> int | None:
    """Return the seconds of a duration (`90s`, `15m`, `2h`, `3d`); None for any other text."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]


def limit_message(value: object, problem: str) -> str:
    """Return in words what msgspec has found; "" if it is not about a limit."""
    found = _LIMIT.search(problem)
    if found is None:
        return ""
    if value != value:
        return f"{value} is not a number"
    limit = found[2].removesuffix(".0")
    if "<" in found[1]:
        return f"{value} is too large; give {'less than' if found[1] == '<' else 'at most'} {limit}"
    return f"{value} is too small; give {'more than' if found[1] == '>' else 'at least'} {limit}"


def _message(error: BadParameter) -> str:
    """Return the message for a value that is no number, or beyond its limit; else ""."""
    problems: Any = getattr(error.__cause__, "errors", list)()
    if not problems:
        return ""
    kind, given = problems[0]["type"], problems[0]["input"]
    limits = problems[0].get("ctx", {})
    if given == "nan":
        return "nan is not a number"
    if "ge" in limits:
        return f"{given} is too small; give at least {limits['ge']:g}"
    if "le" in limits:
        return f"{given} is too large; give at most {limits['le']:g}"
    if kind not in ("int_parsing", "int_from_float", "float_parsing"):
        return ""
    whole = "a whole number" if kind.startswith("int") else "a number"
    name = error.param.metavar if error.param is not None else ""
    if name != "SECONDS":
        return f"{str(given)[:64]!r} is not {whole}"
    seconds = parsed_seconds(str(given)) or 20
    return f"{str(given)[:64]!r} is not {whole}; give seconds without a unit, such as {seconds}"
