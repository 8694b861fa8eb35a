"""The Lua scripts, and the commands that call them. Independent of connections.

A script is named by its file: `jobs/claim` is `jobs/claim.lua`. The head of the file lists ARGV and
the reply. jobs.py and queues.py build the calls of scripts that have several callers or many
arguments, and read their replies. Callers import them as `job_scripts` and `queue_scripts`. Any
other script has one caller, which calls `script(name).call`.

A key is written as `keys.job`, and its value in headrace/redis/keys.py replaces it. Redis receives
`lib/keys.lua` and `lib/common.lua` first. Then come the files of `lib/` that the script's first
line includes (`-- @include finish, queue_position`), and those that these include. The script
itself is last. Defining these functions takes as long as a short call. So scripts that are called
for each job have them as `lib().name`, which defines them at the first use
(`-- @include-lazily finish`).

An extension has a `ScriptFolder` of its own as `SCRIPTS` of its package `redis`: Lua files, their
`lib/` if they need one, and `keys.py` with the keys that the core does not know. Its scripts
include the files of `lib/` here too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType
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

    def call(self, names: Sequence[str], *args: Arg) -> Command:
        """Return the EVALSHA command for these KEYS and ARGV."""
        return ("EVALSHA", self.sha, len(names), *names, *args)

    def on(self, queue: str, *args: Arg) -> Command:
        """Return the command for the keys of a queue; its name is the first of ARGV."""
        return self.call(keys.queue_keys(queue), queue, *args)

    def load_command(self) -> Command:
        """Return the command that loads the script into a server."""
        return ("SCRIPT", "LOAD", self.source)


def load_command(call: Command) -> Command:
    """Return the command that loads the script of a `call`, for a server that replied NOSCRIPT."""
    return _BY_SHA[call[1]].load_command()


#: Every script that this process has asked for, by its SHA-1.
_BY_SHA: Final[dict[Arg, Script]] = {}
_KEY: Final = re.compile(r"(?<![/\w])keys\.(\w+)")
_INCLUDE: Final = re.compile(r"-- @include(-lazily)? ([a-z_, ]+)\n")


class ScriptFolder:
    """The scripts below one package.

    All are read when it is built: after an upgrade a running process must not send the scripts of
    the next version.

    Args:
        own_keys: a module with keys besides those of headrace/redis/keys.py, under other names.
    """

    def __init__(self, package: str, own_keys: ModuleType | None = None) -> None:
        own = dict(_sources(files(package)))
        self._sources = {**_LIBRARY, **own}
        self._keys = {**(vars(own_keys) if own_keys else {}), **vars(keys)}
        self.names: tuple[str, ...] = tuple(
            sorted(name for name in own if not name.startswith("lib/"))
        )
        # A cache of its own, as it is called for each command.
        self.script: Callable[[str], Script] = cache(self._script)

    def _script(self, name: str) -> Script:
        text = self._sources[name]
        lazily, included = _header(text)
        parts = ["common"]
        self._add_parts(parts, included)
        shared = "".join(self._sources[f"lib/{part}"] for part in parts)
        if lazily:
            shared = _define_lazily(shared)
        source = _KEY.sub(self._key_literal, self._sources["lib/keys"] + shared + text)
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return _BY_SHA.setdefault(sha, Script(name, source, sha))

    def _key_literal(self, found: re.Match[str]) -> str:
        """Return a key or a TTL as Lua writes it."""
        value: str | int = self._keys[found[1]]
        return f"'{value}'" if isinstance(value, str) else str(value)

    def _add_parts(self, parts: list[str], included: Sequence[str]) -> None:
        """Add files of lib/ to `parts`, each once and after the files that it includes itself."""
        for part in included:
            if part not in parts:
                self._add_parts(parts, _header(self._sources[f"lib/{part}"])[1])
                parts.append(part)


def _sources(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every Lua file below a folder."""
    for file in folder.iterdir():
        if file.is_dir():
            yield from _sources(file, f"{prefix}{file.name}/")
        elif file.name.endswith(".lua"):
            yield prefix + file.name.removesuffix(".lua"), file.read_text("utf-8")


def _header(text: str) -> tuple[bool, list[str]]:
    """Return whether a file includes lazily, and the files of lib/ that its first line includes."""
    header = _INCLUDE.match(text)
    return (bool(header[1]), header[2].split(", ")) if header else (False, [])


# measured: benchmarks.redis.scripts, 2026-11: -9 % of claim and -10 % of settle, for one job
def _define_lazily(functions: str) -> str:
    """Return Lua for `lib`, which defines these functions once and returns them in a table."""
    names = re.findall(r"^local function (\w+)", functions, re.MULTILINE)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        "local defined\nlocal function lib()\nif defined then return defined end\n"
        f"{functions}defined = {{{table}}}\nreturn defined\nend\n"
    )


#: The files that the scripts of all packages may include.
_LIBRARY: Final = {f"lib/{name}": text for name, text in _sources(files(__name__) / "lib")}
_CORE: Final = ScriptFolder(__name__)
#: Every script of the core.
NAMES: Final = _CORE.names
#: Return the script of this name, one of NAMES.
script: Final = _CORE.script


def pages_of(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Yield items in pages of `most`: one call of a script takes no more, as it blocks Redis."""
    for at in range(0, len(items), most):
        yield items[at : at + most]


def fields_of(flat: Sequence[T]) -> dict[T, T]:
    """Return the fields of a hash from the flat list of a script's reply: name, value, name, ..."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
