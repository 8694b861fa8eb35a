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
#: A key with its escapes, and the value behind the separator.
_ENTRY: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})|\\(.?)", re.DOTALL)
_ESCAPED: Final = re.compile(r"[^ -~]|[\\=:#!]")
_READ: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {char: f"\\{letter}" for letter, char in _READ.items()}
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


def write_properties(path: Path, values: Mapping[str, str]) -> None:
    """Write a properties file, which appears when it is complete."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(properties_text(values), encoding="ascii")
    temporary.replace(path)


def properties_text(values: Mapping[str, str]) -> str:
    """Return the text of a properties file, in ASCII."""
    return "".join(
        f"{_escaped(key, spaces=True)}={_escaped(value)}\n" for key, value in values.items()
    )


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a text; the last value of a key counts.

    Raises:
        ValueError: a Unicode escape has not four hexadecimal digits.
    """
    entries = (_ENTRY.fullmatch(line) for line in _logical_lines(text))
    return {_unescaped(one[1]): _unescaped(one[2]) for one in entries if one is not None}


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


def _unescaped(text: str) -> str:
    def read(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            digits = text[match.end() : match.end() + 4]
            raise ValueError(f"\\u{digits} has not four hexadecimal digits")
        return _READ.get(match[2], match[2])

    # Java writes a character outside the basic plane as two.
    return _ESCAPE.sub(read, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped(text: str, *, spaces: bool = False) -> str:
    def write(match: re.Match[str]) -> str:
        char = match[0]
        if " " < char < "~":
            return f"\\{char}"
        units = char.encode("utf-16-be", "surrogatepass").hex().upper()
        return _WRITTEN.get(char) or re.sub("(....)", r"\\u\1", units)

    found = _ESCAPED.sub(write, text)
    return found.replace(" ", "\\ ") if spaces else re.sub("^ ", r"\\ ", found)
