"""Archives of models, `.mar`, `.zip`, `.tar.gz` and `.tgz`: reads, checks and unpacks them.

An archive is hostile until it was read to its end. Only plain files and folders are unpacked, with
names that keep the rules of `MemberRules`, and with no more bytes than its limits allow.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from typing_extensions import override

from headrace.errors import ConfigError

MIB: Final = 1024 * 1024
_NAME_MAX_BYTES: Final = 255
_PATH_MAX_BYTES: Final = 1024
_DEPTH_MAX: Final = 50
_SHOWN_CHARS: Final = 80
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_SYSTEM_NAMES: Final = frozenset({"__macosx", "thumbs.db", "desktop.ini", "__pycache__"})
_DRIVE: Final = re.compile("^[A-Za-z]:")


def is_of_system(name: str) -> bool:
    """Return whether a system adds files of this name on its own: they are no part of a model."""
    return name.startswith(".") or name.lower() in _SYSTEM_NAMES


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
    """A member that keeps all rules; `path` is below the folder, without `.` and `..`."""

    path: str
    bytes: int
    folder: bool


class MemberRules:
    """Checks the members of one archive, one after the other.

    `count` and `grow` raise a ConfigError if the archive holds too many of them, or too much.

    Args:
        label: the archive, in messages.
        packed_bytes: its size.
    """

    def __init__(self, label: str, packed_bytes: int, limits: Limits) -> None:
        self.total_bytes = 0
        self.label = label
        self.limits = limits
        self._limit_bytes = min(
            limits.total_bytes, max(limits.free_bytes, packed_bytes * limits.ratio)
        )
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
        """Count a member."""
        self._entries += 1
        # A folder that is only part of a path costs as much as a member does.
        if max(self._entries, len(self._seen)) > self.limits.entries:
            raise ConfigError(
                f"{self.label}: it has more than {self.limits.entries:,} members and folders",
                hint="put small files of data into one file",
            )
        self.grow(size)

    def grow(self, size: int) -> None:
        """Count bytes."""
        self.total_bytes += size
        if self.total_bytes <= self._limit_bytes:
            return
        if self._limit_bytes == self.limits.total_bytes:
            raise ConfigError(
                f"{self.label}: it unpacks to more than {self._limit_bytes:,} bytes",
                hint="raise model_limit_bytes (HEADRACE_MODEL_LIMIT_BYTES)",
            )
        raise ConfigError(
            f"{self.label}: it unpacks to more than {self.limits.ratio} times its size, as a "
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


ARCHIVES: Final = (".mar", ".zip", ".tar.gz", ".tgz")
_TARS: Final = (".tar.gz", ".tgz")

_CHUNK_BYTES: Final = MIB
#: The most bytes of all headers of one member of a tar: names are short, and the rest is not used.
_HEADER_MAX_BYTES: Final = 64 * 1024
#: The most PAX keys of a member. tarfile copies those of the whole archive for each member.
_PAX_KEYS_MAX: Final = 100
#: The most bytes of a zip's directory, or of all headers of a tar, for each member that is allowed.
_ENTRY_BYTES: Final = 2048
_ENCRYPTED: Final = 0x1
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What the libraries raise for broken files.
_BROKEN: Final = (
    zipfile.BadZipFile, gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError, ValueError,
    OverflowError, NotImplementedError, RuntimeError, RecursionError, KeyError, IndexError,
    struct.error,
)  # fmt: skip
_ODD_TYPES: Final = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
_ODD_MODES: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}

#: Takes a problem of one member, which is then skipped; or raises.
Report = Callable[[str], None]


def is_archive(name: str) -> bool:
    """Return whether a file is an archive, by its name."""
    return name.lower().endswith(ARCHIVES)


def unpack(path: Path, folder: Path, limits: Limits, label: str = "") -> None:
    """Unpack an archive into an empty folder. After an error the folder has a part of it.

    Raises:
        ConfigError: it is broken, breaks a rule, or there is no room for it.
    """
    label = label or str(path)

    def refuse(problem: str) -> None:
        raise ConfigError(f"{label}: {problem}", hint=f"headrace archive --check {label}")

    written = []
    try:
        # An archive that is refused at its last member has written nothing.
        for _ in read_archive(path, limits, refuse, label):
            pass
        for member, chunks in read_archive(path, limits, refuse, label):
            place = folder / member.path
            if member.folder:
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(place, flags, 0o644), "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            written.append(place)
        # After a crash of the machine, a folder that is there is complete.
        for place in written:
            with place.open("rb") as content:
                os.fsync(content.fileno())
    except OSError as error:
        raise ConfigError(f"{label}: cannot be unpacked: {error.strerror or error}") from error


def read_archive(
    path: Path, limits: Limits, report: Report, label: str = ""
) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Yield the members of an archive with their content, which can be read before the next.

    Args:
        label: its name in messages.

    Raises:
        ConfigError: it is no archive, is broken, or holds too much.
        OSError: it cannot be read.
    """
    label = label or str(path)
    with path.open("rb") as file:
        rules = MemberRules(label, os.fstat(file.fileno()).st_size, limits)
        with _readable(label):
            if path.name.lower().endswith(_TARS):
                yield from _tar(file, rules, report)
            else:
                yield from _zip(file, rules, report)


@contextmanager
def _readable(label: str) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        what = str(error) or type(error).__name__
        raise ConfigError(f"{label}: it is broken: {what}", hint="pack or copy it again") from error


def _complete(chunks: Iterator[bytes], member: Member, label: str) -> Iterator[bytes]:
    """Yield the content of a member, which must be complete."""
    read = 0
    with _readable(label):
        for chunk in chunks:
            read += len(chunk)
            yield chunk
        if read != member.bytes:
            raise EOFError(f"{shown(member.path)} ends too early")


def _zip(
    file: IO[bytes], rules: MemberRules, report: Report
) -> Iterator[tuple[Member, Iterator[bytes]]]:
    if file.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
        raise ConfigError(f"{rules.label}: it is not a zip file", hint="pack it again")
    if _directory_bytes(file) > rules.limits.entries * _ENTRY_BYTES:
        raise ConfigError(f"{rules.label}: it has more than {rules.limits.entries:,} members")
    with zipfile.ZipFile(file) as archive:
        # All names and sizes are checked before anything is unpacked.
        found = [
            (info, member)
            for info in archive.infolist()
            if (member := _zip_member(info, rules, report)) is not None
        ]
        for info, member in found:
            yield member, _complete(_zip_chunks(archive, info), member, rules.label)


def _zip_member(info: zipfile.ZipInfo, rules: MemberRules, report: Report) -> Member | None:
    folder = info.filename.endswith("/")
    rules.count(0 if folder else info.file_size)
    # zipfile cuts a name at a NUL, and keeps the whole one.
    name = info.orig_filename if "\0" in info.orig_filename else info.filename
    path, problem = rules.path_of(name, folder=folder)
    odd = _ODD_MODES.get(stat.S_IFMT(info.external_attr >> 16))
    if odd is not None:
        problem = f"{shown(name)} is {odd}"
    elif info.flag_bits & _ENCRYPTED:
        problem = f"{shown(name)} is encrypted"
    elif info.compress_type not in _METHODS:
        problem = f"{shown(name)} has a compression other than deflate ({info.compress_type})"
    return _checked(path, problem, None if folder else info.file_size, report)


def _checked(path: str, problem: str, size: int | None, report: Report) -> Member | None:
    """Return a member, a folder if it has no size; None after a problem, and for no path."""
    if problem:
        report(problem)
    return None if problem or not path else Member(path, size or 0, size is None)


def _zip_chunks(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    with archive.open(info) as content:
        while chunk := content.read(_CHUNK_BYTES):
            yield chunk


def _directory_bytes(file: IO[bytes]) -> int:
    """Return the size of a zip's directory, which zipfile reads at once."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 22 - 65_535)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22:
        return 0  # zipfile reports what is wrong
    found = int.from_bytes(tail[at + 12 : at + 16], "little")
    if found == 0xFFFFFFFF and start + at >= 76:
        # Zip64: a record of 56 bytes with the size, and its locator of 20, come before.
        file.seek(start + at - 76)
        record = file.read(56)
        if record[:4] == b"PK\x06\x06":
            found = int.from_bytes(record[40:48], "little")
    file.seek(0)
    return found


def _tar(
    file: IO[bytes], rules: MemberRules, report: Report
) -> Iterator[tuple[Member, Iterator[bytes]]]:
    if file.read(2) != b"\x1f\x8b":
        raise ConfigError(f"{rules.label}: it is not a .tar.gz file", hint="pack it again")
    file.seek(0)
    with gzip.GzipFile(fileobj=file) as plain:
        stream = _MemberStream(
            plain, rules, _HEADER_MAX_BYTES + rules.limits.entries * _ENTRY_BYTES
        )
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while (info := archive.next()) is not None:
                # tarfile would keep all members.
                archive.members.clear()  # type: ignore[attr-defined]
                stream.end_header()
                if len(info.pax_headers) > _PAX_KEYS_MAX:
                    raise tarfile.ReadError(f"a header has more than {_PAX_KEYS_MAX} keys")
                # The stream counts the bytes, as far as they are there.
                rules.count(0)
                member = _tar_member(info, rules, report)
                if member is not None:
                    yield member, _complete(_tar_chunks(archive, info), member, rules.label)
                stream.begin_header()
            stream.end_header()
        stream.read_rest()


def _tar_member(info: tarfile.TarInfo, rules: MemberRules, report: Report) -> Member | None:
    folder = info.isdir()
    path, problem = rules.path_of(info.name, folder=folder)
    if info.type in _ODD_TYPES:
        problem = f"{shown(info.name)} is {_ODD_TYPES[info.type]}"
    elif info.issparse():
        problem = f"{shown(info.name)} is a sparse file"
    elif not folder and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        problem = f"{shown(info.name)} is not a plain file"
    problem = problem or _refused_by_python(info)
    return _checked(path, problem, None if folder else info.size, report)


def _refused_by_python(info: tarfile.TarInfo) -> str:
    """Return what Python's own filter for data refuses; "" if nothing."""
    check = getattr(tarfile, "data_filter", None)  # Python 3.11.4
    if check is not None:
        try:
            check(info, "/nowhere")
        except tarfile.TarError as error:
            return str(error)
    return ""


def _tar_chunks(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    content = archive.extractfile(info)
    if content is None:
        raise tarfile.ReadError(f"{shown(info.name)} has no content")
    while chunk := content.read(_CHUNK_BYTES):
        yield chunk


class _MemberStream(io.RawIOBase):
    """The content of a gzip file for tarfile: read once, from its start, with its bytes counted.

    tarfile reads headers whole, however long they claim to be, and jumps over members.
    """

    def __init__(
        self, stream: gzip.GzipFile, rules: MemberRules, all_headers_max_bytes: int
    ) -> None:
        self._stream = stream
        self._left_header_bytes = all_headers_max_bytes
        self._rules = rules
        self._at = 0
        self._last_read = b""
        self._in_header = True
        self._header_bytes = 0

    def begin_header(self) -> None:
        self._in_header, self._header_bytes = True, 0

    def end_header(self) -> None:
        self._in_header = False

    @override
    def read(self, size: int = -1, /) -> bytes:
        if self._in_header:
            self._header_bytes += size
            self._left_header_bytes -= size
        if not 0 <= size <= _CHUNK_BYTES or self._header_bytes > _HEADER_MAX_BYTES:
            raise tarfile.ReadError("a header is too long")
        if self._left_header_bytes < 0:
            raise tarfile.ReadError("its headers are too long")
        return self._read_counted(size)

    def _read_counted(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._at += len(found)
        self._last_read = found
        self._rules.grow(len(found))
        return found

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if (offset, whence) == (0, os.SEEK_CUR):
            return self._at
        if whence != os.SEEK_SET or offset < self._at:
            raise tarfile.ReadError("its members overlap")
        while self._at < offset and self._read_counted(min(_CHUNK_BYTES, offset - self._at)):
            pass
        return self._at

    def read_rest(self) -> None:
        """Read what follows the last member, so that a broken end is found."""
        if self._last_read != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it ends too early, or a header is broken")
        while self.read(_CHUNK_BYTES):
            pass

    @override
    def seekable(self) -> bool:
        return True

    @override
    def readable(self) -> bool:
        return True
