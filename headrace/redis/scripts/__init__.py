"""The Lua scripts, and the commands that call them. Knows no connection: callers send them.

A script is named by its file: `jobs/claim` is `jobs/claim.lua`. Its source as Redis sees it is
`lib/keys.lua` and `lib/common.lua`, then the files of `lib/` that its first line includes
(`-- @include finish, queue_position`), then the file itself. To define these functions takes as
long as many a call. So scripts that are called for each job get them as `seldom().name`, defined at
the first use (`-- @include-lazily finish`).
A server that does not know a script (after a restart or a failover) answers NOSCRIPT; the caller
then sends `load_command` and the call again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

Arg = str | bytes | int
Command = tuple[Arg, ...]

#: The most bytes of messages that one claim takes, unless its first message alone is larger.
CLAIM_MAX_BYTES: Final = 1024 * 1024
#: A claim's answer: so much of the queue, then so much per job; jobs/claim.lua says what.
CLAIM_HEAD: Final = 6
CLAIM_ROW: Final = 8


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its source as Redis sees it, and the SHA-1 that Redis knows it by."""

    name: str
    source: str
    sha: str

    def call(self, keys: Sequence[str], *args: Arg) -> Command:
        """The EVALSHA command for these KEYS and ARGV."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def load_command(self) -> Command:
        """The command that makes a server know the script."""
        return ("SCRIPT", "LOAD", self.source)


def _read_sources() -> dict[str, str]:
    """Read every Lua file below this package: its text, by its name such as `jobs/claim`.

    An upgrade under a running process must not make it send the scripts of the next version, so all
    of them are read with this module.
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
_INCLUDE: Final = re.compile(r"-- @include(-lazily)? ([a-z_, ]+)\n")

#: Every script.
NAMES: Final = tuple(sorted(name for name in _SOURCES if not name.startswith("lib/")))


@cache
def script(name: str) -> Script:
    """Return the script of this name, one of NAMES."""
    text = _SOURCES[name]
    included: list[str] = []
    lazily = False
    if header := _INCLUDE.match(text):
        included, lazily = header[2].split(", "), bool(header[1])
    shared = "".join(_SOURCES[f"lib/{part}"] for part in ["common", *included])
    if lazily:
        shared = _define_lazily(shared)
    source = _SOURCES["lib/keys"] + shared + text
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha)


def _define_lazily(functions: str) -> str:
    """Lua for the function `seldom`, which gives a table of these and defines them only once."""
    names = re.findall(r"^local function (\w+)", functions, re.MULTILINE)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        "local defined\nlocal function seldom()\nif defined then return defined end\n"
        f"{functions}defined = {{{table}}}\nreturn defined\nend\n"
    )
