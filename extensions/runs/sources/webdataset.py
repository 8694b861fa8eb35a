"""Samples of WebDataset tar shards: consecutive members with the same name are one input.

A member's name is the name of its sample, up to the first dot behind the last slash, and then its
kind. So `0001.seg.png` is the member `seg.png` of the sample `0001`. One member or an object of
several is the input; `.json`, `.cls` and `.txt` members are carried. A broken sample becomes an
item with an error. The rest of a shard that is cut off becomes one item with an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, BinaryIO, Final, Self

import msgspec
from typing_extensions import override

from extensions.runs.sources.files import BROKEN, SourceFile, cut_off, is_gzip, open_unpacked
from extensions.runs.sources.options import SourceOptions
from extensions.runs.sources.table import END, Item, TableSource
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest
from headrace.jobs.values.encoding import binary_input
from headrace.jobs.values.media_types import BINARY_TYPE, BOM, image_type, type_by_name
from headrace.runs.columns import carry, listed
from headrace.runs.interfaces import Carried
from headrace.text import path_text

#: The kinds of members that a row carries, by the end of their name.
CARRIED: Final = ("json", "cls", "txt")


class _Broken(Exception):
    """The tar cannot be read from here on."""


class _Member(tarfile.TarInfo):
    """Raises an error for a broken header, which tarfile takes for the end of the archive."""

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
    def __init__(self, name: str) -> None:
        self.name = name
        # The members, and of these the ones that cannot be carried, in order.
        self.members: dict[str, None] = {}
        self.not_carried: dict[str, None] = {}
        self.kept: dict[str, bytes] = {}
        self.wrong = ""


class TarSource(TableSource):
    """The samples of tar shards.

    The input is the member that the options name: `jpg`, or the first that exists of `jpg;png`. For
    `jpg;png,cls` it is an object of two members, `jpg` and `cls`.
    """

    kind = "tar"

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        super().__init__(files, options)
        # For each member of the input the names that it may have.
        named = [_kinds(names) for names in (options.input or "").split(",")]
        self._wanted = [kinds for kinds in named if kinds]
        self._all_wanted = {kind for kinds in self._wanted for kind in kinds}

    @override
    def count_in(self, file: SourceFile) -> int | None:
        return None  # a tar has no table of contents

    @override
    def read(self, file: SourceFile, at: Any) -> Iterator[Item]:
        # A place is the byte where the next sample's first member begins.
        sample: _Sample | None = None
        begin = 0 if at is None else int(at)
        with closing(open_unpacked(file, begin)) as stream:
            try:
                for tar, member, place in _members(
                    stream, begin, seekable=file.local and not is_gzip(file)
                ):
                    name, kind = _split(path_text(member.name))
                    if not name or not (member.isreg() or member.islnk() or member.issym()):
                        continue
                    if sample is None or sample.name != name:
                        if sample is not None:
                            yield self._item(file, sample, place)
                        sample = _Sample(name)
                    self._take(tar, member, kind, sample)
            except (_Broken, tarfile.TarError, *BROKEN) as error:
                yield _rest(file, sample, error)
                return
        if sample is not None:
            yield self._item(file, sample, END)

    def _take(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, kind: str, sample: _Sample
    ) -> None:
        if kind in sample.members:
            sample.wrong = f"it has two members {kind!r}"
        sample.members[kind] = None
        is_carried = _is_carried(kind)
        if not is_carried:
            sample.not_carried[kind] = None
        is_input = kind in self._all_wanted if self._wanted else not is_carried
        if is_input and not self._wanted and len(sample.not_carried) > 1:
            return  # the sample fails: none of several is named
        if not (is_input or is_carried):
            return
        if member.isreg():
            stream = tar.extractfile(member)
            sample.kept[kind] = b"" if stream is None else stream.read()
        else:
            sample.kept[kind] = b""
            what = "hard" if member.islnk() else "symbolic"
            sample.wrong = (
                f"its member {kind!r} is a {what} link, which is not followed: pack the shard with "
                "tar --dereference --hard-dereference"
            )

    def _item(self, file: SourceFile, sample: _Sample, at: Any) -> Item:
        try:
            if sample.wrong:
                raise ValueError(sample.wrong)  # noqa: TRY301
            found = self._input_kinds(sample)
            carried: Carried = {
                kind: _json(_value(kind, body))
                for kind, body in sample.kept.items()
                if kind not in found and _is_carried(kind)
            }
            values = [_value(kind, sample.kept[kind]) for kind in found]
        except (ValueError, msgspec.DecodeError) as error:
            wrong = InvalidRequest(f"{file.name}, sample {sample.name!r}: {error}")
            return Item(sample.name, wrong, at)
        if len(self._wanted) > 1:
            names = [kinds[0] for kinds in self._wanted]
            members = map(_member_json, found, values)
            value = _json(dict(zip(names, members, strict=True)))
            return Item(sample.name, value, at, carry(carried))
        (value,) = values
        kind = type_by_name(f"x.{found[0]}") if isinstance(value, bytes) else None
        return Item(sample.name, value, at, carry(carried), "", kind)

    def _input_kinds(self, sample: _Sample) -> list[str]:
        """Return the members of a sample that are the input.

        Raises:
            ValueError: one of them is missing, or none of several is named.
        """
        if not self._wanted:
            found = list(sample.not_carried or sample.members)
            if len(found) > 1:
                raise ValueError(
                    f"it has {listed(sample.members)}: name the one that is the input with --input"
                )
            return found
        found = []
        for kinds in self._wanted:
            kind = next((kind for kind in kinds if kind in sample.kept), None)
            if kind is None:
                name = ";".join(kinds)
                near = did_you_mean(name, sample.members)
                raise ValueError(
                    f"it has no member {name!r}{near}; it has {listed(sample.members)}"
                )
            found.append(kind)
        return found


def _members(
    stream: BinaryIO, begin: int, *, seekable: bool
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, int]]:
    """Yield the members, each with the place of its header in the whole file."""
    mode: Any = "r:" if seekable else "r|"
    with tarfile.open(
        fileobj=stream, mode=mode, tarinfo=_Member, encoding="utf-8", errorlevel=2
    ) as tar:
        while (member := tar.next()) is not None:
            yield tar, member, member.offset + (0 if seekable else begin)
            # tarfile would keep all members, which can be millions.
            tar.members.clear()  # type: ignore[attr-defined]


def _split(name: str) -> tuple[str, str]:
    """Return the sample of a member and its kind; "" for a member that belongs to no sample."""
    folder, slash, last = name.removeprefix("./").rpartition("/")
    base, dot, kind = last.partition(".")
    if not base or not dot or base.startswith("__"):
        return "", ""
    return f"{folder}{slash}{base}", kind.lower()


def _is_carried(kind: str) -> bool:
    return kind.rpartition(".")[2] in CARRIED


def _value(kind: str, body: bytes) -> Any:
    """Return the value of a member, which its name determines."""
    last = kind.rpartition(".")[2]
    if last not in CARRIED:
        return body
    body = body.removeprefix(BOM)
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


def _kinds(names: str) -> list[str]:
    """Return the kinds of a text such as `.JPG;png`."""
    return [name.strip().lower().removeprefix(".") for name in names.split(";") if name.strip()]


def _member_json(kind: str, value: Any) -> msgspec.Raw:
    """Return the JSON of a member in an input of several."""
    if not isinstance(value, bytes):
        return _json(value)
    content_type = type_by_name(f"x.{kind}") or image_type(value) or BINARY_TYPE
    return msgspec.Raw(binary_input(value, content_type))


def _json(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _rest(file: SourceFile, sample: _Sample | None, error: Exception) -> Item:
    """Return the item for the rest of a broken shard, from the current sample on."""
    name = sample.name if sample is not None else "beginning"
    if isinstance(error, BROKEN):
        return Item(name, cut_off(file, error), END)
    wrong = InvalidRequest(
        f"{file.name}: the tar is cut off or broken from {name!r} on, and what follows is lost: "
        f"{error}",
        hint="Create the shard again.",
    )
    return Item(name, wrong, END)
