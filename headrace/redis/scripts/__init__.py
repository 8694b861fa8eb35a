"""The Lua scripts, and the commands that call them. Independent of connections.

A script is named by its file: `jobs/claim` is `jobs/claim.lua`. The head of the file lists ARGV and
the reply. jobs.py and queues.py build the calls of their folders and read the replies. Callers
import them as `job_scripts` and `queue_scripts`. A script of another folder has one caller, which
calls `script(name).call`.

A key is written as `keys.job`, and its value in headrace/redis/keys.py replaces it. Redis receives
`lib/keys.lua` and `lib/common.lua` first. Then come the files of `lib/` that the script's first
line includes (`-- @include finish, queue_position`), and those that these include. The script
itself is last. Defining these functions takes as long as a short call. So scripts that are called
for each job have them as `lib().name`, which defines them at the first use
(`-- @include-lazily finish`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, TypeVar

from headrace.redis import keys

T = TypeVar("T")

Arg = str | bytes | int
Command = tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source as Redis sees it, and the SHA-1 that Redis knows it by."""

    name: str
    source: str
    sha: str

    def call(self, keys: Sequence[str], *args: Arg) -> Command:
        """Return the EVALSHA command for these KEYS and ARGV."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def load_command(self) -> Command:
        """Return the command that loads the script into a server."""
        return ("SCRIPT", "LOAD", self.source)


def load_command(call: Command) -> Command:
    """Return the command that loads the script of a `call`, for a server that replied NOSCRIPT."""
    return _by_sha()[call[1]].load_command()


def _read_sources() -> dict[str, str]:
    """Return the text of every Lua file below this package, by its name such as `jobs/claim`.

    All are read when this module is imported: after an upgrade a running process must not send the
    scripts of the next version.
    """
    root = files(__name__)
    return {
        f"{folder.name}/{file.name.removesuffix('.lua')}": file.read_text("utf-8")
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }


_SOURCES: Final = _read_sources()
_KEY: Final = re.compile(r"(?<![/\w])keys\.(\w+)")
_INCLUDE: Final = re.compile(r"-- @include(-lazily)? ([a-z_, ]+)\n")

#: Every script.
NAMES: Final = tuple(sorted(name for name in _SOURCES if not name.startswith("lib/")))


@cache
def script(name: str) -> Script:
    """Return the script of this name, one of NAMES."""
    text = _SOURCES[name]
    lazily, included = _header(text)
    parts = ["common"]
    _add_parts(parts, included)
    shared = "".join(_SOURCES[f"lib/{part}"] for part in parts)
    if lazily:
        shared = _define_lazily(shared)
    source = _KEY.sub(_key_literal, _SOURCES["lib/keys"] + shared + text)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha)


def _key_literal(found: re.Match[str]) -> str:
    """Return a key or a TTL of headrace/redis/keys.py as Lua writes it."""
    value: str | int = getattr(keys, found[1])
    return f"'{value}'" if isinstance(value, str) else str(value)


def _header(text: str) -> tuple[bool, list[str]]:
    """Return whether a file includes lazily, and the files of lib/ that its first line includes."""
    header = _INCLUDE.match(text)
    return (bool(header[1]), header[2].split(", ")) if header else (False, [])


def _add_parts(parts: list[str], included: Sequence[str]) -> None:
    """Add files of lib/ to `parts`, each once and after the files that it includes itself."""
    for part in included:
        if part not in parts:
            _add_parts(parts, _header(_SOURCES[f"lib/{part}"])[1])
            parts.append(part)


@cache
def _by_sha() -> dict[Arg, Script]:
    return {known.sha: known for known in map(script, NAMES)}


# measured: benchmarks.redis.scripts, 2026-11: -9 % of claim and -10 % of settle, for one job
def _define_lazily(functions: str) -> str:
    """Return Lua for `lib`, which defines these functions once and returns them in a table."""
    names = re.findall(r"^local function (\w+)", functions, re.MULTILINE)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        "local defined\nlocal function lib()\nif defined then return defined end\n"
        f"{functions}defined = {{{table}}}\nreturn defined\nend\n"
    )


def pages_of(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield items in pages of `most`: one call of a script takes no more, as it blocks Redis."""
    for at in range(0, len(items), most):
        yield items[at : at + most]
