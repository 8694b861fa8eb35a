"""Samples of WebDataset tar shards: members that follow each other under one name are one input.

A member's name is its sample's up to the first dot of its last part, and the rest says what it is
(`0001.seg.png`: sample `0001`, member `seg.png`). One member is the input; `.json`, `.cls` and
`.txt` members are carried. A sample that is broken becomes an item with an error; so does all that
a shard that is cut off has lost, as one.
"""

from __future__ import annotations

import mimetypes
import tarfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any, BinaryIO, Final, Self

import msgspec
from typing_extensions import override

from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest
from headrace.runs.interfaces import Carried, carry
from headrace.runs.sources.files import BROKEN, SourceFile, cut_off, packed, unpacked
from headrace.runs.sources.options import SourceOptions
from headrace.runs.sources.table import END, Item, bad

#: Members that a row carries, by the end of their name.
CARRIED: Final = ("json", "cls", "txt")
_TYPES: Final = mimetypes.MimeTypes()


class _Broken(Exception):
    """The tar cannot be read from here on."""


class _Member(tarfile.TarInfo):
    """tarfile takes a broken header for the end of the archive; here it is an error."""

    @classmethod
    @override
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise _Broken(str(error)) from None


class _Sample:
    """What is known so far of the sample that is being read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: list[str] = []
        self.kept: dict[str, bytes] = {}
        self.wrong = ""

    def found(self, *, is_carried: bool) -> list[str]:
        """Its members that would be carried, or the others."""
        return [kind for kind in self.members if _is_carried(kind) == is_carried]


class TarReader:
    """Reads tar shards.

    Args:
        options: which member is the input, as `jpg` or, the first that is there, `jpg;png`.
    """

    kind: Final = "tar"

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = [
            name.strip().lower().removeprefix(".")
            for name in (options.input or "").replace(",", ";").split(";")
            if name.strip()
        ]

    def count(self, blob: SourceFile) -> int | None:
        """Not known: a tar has no table of what it holds."""
        return None

    def read(self, blob: SourceFile, at: Any) -> Iterator[Item]:
        """The samples behind a place: the byte where the next one's first member begins.

        Raises:
            ConfigError: the file cannot be read.
            Conflict: it has changed.
        """
        sample: _Sample | None = None
        begin = 0 if at is None else int(at)
        with closing(unpacked(blob, begin)) as file:
            try:
                for tar, member, place in _members(
                    file, begin, seekable=blob.local and not packed(blob)
                ):
                    name, kind = _split(member.name)
                    if not name or not member.isreg():
                        continue
                    if sample is None or sample.name != name:
                        if sample is not None:
                            yield self._item(blob, sample, place)
                        sample = _Sample(name)
                    self._take(tar, member, kind, sample)
            except (_Broken, tarfile.TarError, *BROKEN) as error:
                yield _rest(blob, sample, error)
                return
        if sample is not None:
            yield self._item(blob, sample, END)

    def _take(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str, sample: _Sample
    ) -> None:
        if kind in sample.members:
            sample.wrong = f"there are two members {kind!r}"
        sample.members.append(kind)
        is_input = kind in self._wanted if self._wanted else not _is_carried(kind)
        if is_input and not self._wanted and len(sample.found(is_carried=False)) > 1:
            return  # there are several, and none is named
        if is_input or _is_carried(kind):
            file = tar.extractfile(member)
            sample.kept[kind] = b"" if file is None else file.read()

    def _item(self, blob: SourceFile, sample: _Sample, at: Any) -> Item:
        wanted = next((kind for kind in self._wanted if kind in sample.kept), None)
        if not self._wanted:
            found = sample.found(is_carried=False) or sample.members
            wanted = found[0] if len(found) == 1 else None
        try:
            carried: Carried = {
                kind: _json(_value(kind, body))
                for kind, body in sample.kept.items()
                if kind != wanted and _is_carried(kind)
            }
            if sample.wrong:
                raise ValueError(sample.wrong)  # noqa: TRY301
            if wanted is None:
                raise ValueError(self._lacking(sample))  # noqa: TRY301
            value = _value(wanted, sample.kept[wanted])
        except (ValueError, msgspec.DecodeError) as error:
            wrong = InvalidRequest(f"{blob.name}, sample {sample.name!r}: {error}")
            return bad(wrong, sample.name, at)
        guessed, _ = _TYPES.guess_type(f"x.{wanted}") if isinstance(value, bytes) else (None, None)
        return Item(sample.name, value, at, carry(carried), "", guessed)

    def _lacking(self, sample: _Sample) -> str:
        listed = ", ".join(map(repr, sample.members))
        if not self._wanted:
            return f"it has {listed}: name the one that is the input by --input"
        name = ";".join(self._wanted)
        return f"it has no member {name!r}{did_you_mean(name, sample.members)}; it has {listed}"


def _members(
    file: BinaryIO, begin: int, *, seekable: bool
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, int]]:
    """The members, each with the place of its header in the whole file."""
    mode: Any = "r:" if seekable else "r|"
    with tarfile.open(fileobj=file, mode=mode, tarinfo=_Member, errorlevel=2) as tar:
        while (member := tar.next()) is not None:
            yield tar, member, member.offset + (0 if seekable else begin)
            # It remembers all members, which are millions.
            tar.members.clear()  # type: ignore[attr-defined]


def _split(name: str) -> tuple[str, str]:
    """The sample that a member belongs to and what it is of it; "" for what belongs to none."""
    folder, slash, last = name.removeprefix("./").rpartition("/")
    base, dot, kind = last.partition(".")
    if not base or not dot or base.startswith("__"):
        return "", ""
    return f"{folder}{slash}{base}", kind.lower()


def _is_carried(kind: str) -> bool:
    return kind.rpartition(".")[2] in CARRIED


def _value(kind: str, body: bytes) -> Any:
    """What a member holds, by its name."""
    last = kind.rpartition(".")[2]
    if last not in CARRIED:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"member {kind!r} is not UTF-8: {error}") from None
    if last == "json":
        try:
            msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise ValueError(f"member {kind!r} is not JSON: {error}") from None
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    if last == "cls" and text.strip().isdecimal():
        return int(text)
    return text.strip() if last == "cls" else text


def _json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _rest(blob: SourceFile, sample: _Sample | None, error: Exception) -> Item:
    """All that a shard has lost, from the sample on that was being read."""
    name = sample.name if sample is not None else "beginning"
    if isinstance(error, BROKEN):
        return bad(cut_off(blob, error), name, END)
    wrong = InvalidRequest(
        f"{blob.name}: the tar is cut off or broken from {name!r} on, and what is behind it is "
        f"lost: {error}",
        hint="Write the shard anew.",
    )
    return bad(wrong, name, END)
