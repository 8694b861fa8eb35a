"""The syntax of `config.properties`: what java.util.Properties reads and writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

_MAX_BYTES: Final = 16 * 1024 * 1024
_SPACE: Final = " \t\f"
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")
_READ: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {
    "\t": r"\t", "\n": r"\n", "\r": r"\r", "\f": r"\f", "\\": r"\\", "=": r"\=", ":": r"\:",
    "#": r"\#", "!": r"\!",
}  # fmt: skip
_HEX_DIGITS: Final = re.compile("[0-9A-Fa-f]{4}")
_VARIABLE: Final = re.compile(r"\$\$([^$]+)\$\$")


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a properties file.

    Raises:
        ConfigError: it cannot be read, or a Unicode escape is incomplete.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path}: it is larger than {_MAX_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: it cannot be read: {error.strerror}", hint="correct the path of the file"
        ) from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # as Java reads it
    try:
        return parse_properties(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint="write the character, or four digits") from error


def write_properties(values: Mapping[str, str]) -> str:
    """Return the text of a properties file, in ASCII."""
    return "".join(
        f"{_escaped(key, spaces=True)}={_escaped(value)}\n" for key, value in values.items()
    )


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a text; the last value of a key counts.

    Raises:
        ValueError: a Unicode escape has not four hexadecimal digits.
    """
    return dict(_entry(line) for line in _logical_lines(text))


def with_variables(
    values: Mapping[str, str], environ: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return values in which `$$NAME$$` is replaced by the environment variable.

    Raises:
        ConfigError: a variable is not set; the message names `where` and the key.
    """
    found = {}
    for key, value in values.items():
        for name in _VARIABLE.findall(value):
            if name not in environ:
                raise ConfigError(
                    f"{where}: {key}: the environment variable {name} is not set",
                    hint=f"set it, or write a value instead of $${name}$$",
                )
        found[key] = _VARIABLE.sub(lambda match: environ[match[1]], value)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines with an entry: continued lines are joined; comments are left out."""
    line: str | None = None
    for natural in _LINE_ENDS.split(text):
        stripped = natural.lstrip(_SPACE)
        if line is None and (not stripped or stripped[0] in "#!"):
            continue
        line = (line or "") + stripped
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            line = line[:-1]
            continue
        if line:
            yield line
        line = None
    if line:
        yield line


def _entry(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" + _SPACE:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return _unescaped(line[:end]), _unescaped(rest)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    found, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            found.append(char)
            continue
        char = text[at : at + 1]
        at += 1
        if char != "u":
            found.append(_READ.get(char, char))
            continue
        digits = _HEX_DIGITS.match(text, at)
        if digits is None:
            raise ValueError(f"\\u{text[at : at + 4]} has not four hexadecimal digits")
        found.append(chr(int(digits[0], 16)))
        at += 4
    # Java writes a character outside the basic plane as two.
    return "".join(found).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(text: str, *, spaces: bool = False) -> str:
    found = []
    for place, char in enumerate(text):
        if char == " " and (spaces or place == 0):
            found.append("\\ ")
        elif char in _WRITTEN:
            found.append(_WRITTEN[char])
        elif " " <= char <= "~":
            found.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            found += [f"\\u{units[at : at + 2].hex().upper()}" for at in range(0, len(units), 2)]
    return "".join(found)
