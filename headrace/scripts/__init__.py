"""The Lua scripts, and the commands that call them. Knows no connection: callers send them.

Each script is `_lib.lua` and `_common.lua`, then `_end.lua` where it ends jobs or gives them back,
`_withdraw.lua` where it takes them out of the midst of a queue, `_place.lua` where it says where
they stand in one, then its own file. To define the functions of these files takes as long as many a
call; so those that are called for each job get them as `seldom().name`, made when first asked for.
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
#: A claim's answer: so much of the queue, then so much per job; claim.lua says what.
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


#: The scripts that end jobs or give them back, and so begin with `_end.lua` too.
_ENDING: Final = frozenset(
    {"claim", "settle", "release", "release_owner", "sweep", "cancel", "purge", "expire"}
)
#: Those of them that ask for most functions of the files before them in unusual cases alone.
_SELDOM: Final = frozenset({"claim", "settle"})
#: Those of them that take jobs out of the midst of their queues, and so have _withdraw.lua too.
_WITHDRAWING: Final = frozenset({"cancel", "expire"})
#: The scripts that say where jobs stand in their queues, and so have _place.lua too.
_PLACING: Final = frozenset({"view", "watch"})

NAMES: Final = (
    "errands", "stages", "clear", "hand_over",
    "submit", "claim", "settle", "renew", "release", "release_owner", "sweep", "cancel", "view",
    "depth", "index", "purge", "requeue", "purge_letters", "put_payload", "look_payloads",
    "follow", "report", "file_begin", "file_part", "file_finish", "take_tokens",
    "outcomes", "forget", "listen", "tell_run", "expire",
    "hook_save", "hooks_due",
    "batch_create", "batch_cancel", "batch_claim", "batch_save", "batch_release",
    "progress", "watch",
)  # fmt: skip


#: Every file of Lua, read with this module: an upgrade under a running process must not have its
#: Python send the scripts of the next version.
_SOURCES: Final = {
    file.name: file.read_text("utf-8")
    for file in files(__name__).iterdir()
    if file.name.endswith(".lua")
}


@cache
def script(name: str) -> Script:
    """The script of that name, one of NAMES."""
    ending = ("_end",) if name in _ENDING else ()
    withdrawing = ("_withdraw",) if name in _WITHDRAWING else ()
    placing = ("_place",) if name in _PLACING else ()
    shared = _text("_common", *ending, *withdrawing, *placing)
    if name in _SELDOM:
        shared = _when_asked_for(shared)
    source = _text("_lib") + shared + _text(name)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, sha)


def _text(*parts: str) -> str:
    return "".join(_SOURCES[f"{part}.lua"] for part in parts)


def _when_asked_for(functions: str) -> str:
    """Lua for the function `seldom`, which gives a table of these, and defines them only once."""
    names = re.findall(r"^local function (\w+)", functions, re.MULTILINE)
    table = ", ".join(f"{name} = {name}" for name in names)
    return (
        "local defined\nlocal function seldom()\nif defined then return defined end\n"
        f"{functions}defined = {{{table}}}\nreturn defined\nend\n"
    )
