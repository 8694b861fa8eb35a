"""The rules for the members of an archive: their names, their number and their size.

An archive comes from anywhere. A name is refused if it leads out of the folder, or if two file
systems would understand it differently. An archive that grows out of proportion is refused too.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from headrace.errors import ConfigError

MIB: Final = 1024 * 1024
_NAME_MAX_BYTES: Final = 255
_PATH_MAX_BYTES: Final = 1024
_DEPTH_MAX: Final = 50
_SHOWN_CHARS: Final = 80
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_OF_SYSTEMS: Final = frozenset({"__macosx", "thumbs.db", "desktop.ini", "__pycache__"})
_DRIVE: Final = re.compile("^[A-Za-z]:")


def is_of_system(name: str) -> bool:
    """Return whether a system adds files of this name on its own: they are no part of a model."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


class Limits(NamedTuple):
    """How much an archive may hold.

    Attributes:
        entries: the most members.
        total_bytes: the most bytes of all members together.
        ratio: the most that the members may be larger than the archive.
        free_bytes: up to this size together, they may have any ratio.
    """

    entries: int = 10_000
    total_bytes: int = 32 * 1024 * MIB
    ratio: int = 200
    free_bytes: int = 64 * MIB


class Member(NamedTuple):
    """A member of an archive that keeps all rules.

    Attributes:
        path: where it belongs, below the folder; without `.` and `..`.
        bytes: its size.
        folder: whether it is a folder.
    """

    path: str
    bytes: int
    folder: bool


class MemberRules:
    """Checks the members of one archive, one after the other.

    Args:
        label: the archive, in messages.
        packed_bytes: its size.
        limits: how much it may hold.
    """

    def __init__(self, label: str, packed_bytes: int, limits: Limits) -> None:
        self.total_bytes = 0
        self._label = label
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.free_bytes, packed_bytes * limits.ratio))
        self._entries = 0
        #: By the path as a file system without case has it: its spelling, and if it is a folder.
        self._seen: dict[str, tuple[str, bool]] = {}

    def path_of(self, name: str, *, folder: bool) -> tuple[str, str]:
        """Return the path of a member, and what is wrong with its name; "" if nothing is."""
        problem = _name_problem(name)
        path = "/".join(part for part in name.split("/") if part not in ("", "."))
        if not problem and not path and not folder:
            problem = f"a member has no name ({shown(name)})"
        if problem or not path:
            return path, problem
        return path, self._collision(path, folder=folder)

    def count(self, size: int) -> None:
        """Count a member.

        Raises:
            ConfigError: the archive holds too many, or too much.
        """
        self._entries += 1
        # A folder that is only part of a path costs as much as a member does.
        if max(self._entries, len(self._seen)) > self._limits.entries:
            raise ConfigError(
                f"{self._label}: it has more than {self._limits.entries:,} members and folders",
                hint="put small files of data into one file",
            )
        self.grow(size)

    def grow(self, size: int) -> None:
        """Count bytes.

        Raises:
            ConfigError: the archive holds too much.
        """
        self.total_bytes += size
        if self.total_bytes <= self._most:
            return
        if self._most == self._limits.total_bytes:
            raise ConfigError(
                f"{self._label}: it unpacks to more than {self._most:,} bytes",
                hint="raise model_limit_bytes (HEADRACE_MODEL_LIMIT_BYTES)",
            )
        raise ConfigError(
            f"{self._label}: it unpacks to more than {self._limits.ratio} times its size, as a "
            "decompression bomb does",
            hint="otherwise use the folder itself as the source",
        )

    def _collision(self, path: str, *, folder: bool) -> str:
        """Return with which other member a path collides; "" if with none. Remembers the path."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            inner = depth < len(parts)
            is_folder = inner or folder
            key = unicodedata.normalize("NFC", part).casefold()
            if key not in self._seen:
                self._seen[key] = part, is_folder
                continue
            spelling, was_folder = self._seen[key]
            if spelling != part:
                return f"{shown(path)} differs from {shown(spelling)} only in case or accents"
            if was_folder != is_folder:
                return f"{shown(part)} is both a file and a folder"
            if not is_folder:
                return f"{shown(path)} is in it twice"
        return ""


def shown(name: str) -> str:
    """Return a name for a message: quoted, with escapes, shortened."""
    text = ascii(name)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...'"


def _name_problem(name: str) -> str:
    if _CONTROL.search(name):
        what = "a NUL" if "\0" in name else "a control character"
        return f"{shown(name)} has {what} in its name"
    if "\\" in name:
        return f"{shown(name)} has a backslash in its name"
    if name.startswith("/") or _DRIVE.match(name):
        return f"{shown(name)} is an absolute path"
    parts = name.split("/")
    if ".." in parts:
        return f"{shown(name)} leads out of the folder"
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        return f"{shown(name)} is not UTF-8"
    if len(parts) > _DEPTH_MAX:
        return f"{shown(name)} is more than {_DEPTH_MAX} folders deep"
    if max(map(len, encoded)) > _NAME_MAX_BYTES or sum(map(len, encoded)) > _PATH_MAX_BYTES:
        return f"{shown(name)} is too long"
    return ""
