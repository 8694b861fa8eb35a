"""Rows as one Parquet file or object, made when all of them are there. Needs pyarrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from headrace.errors import ConfigError, Conflict
from headrace.runs.arrow.rows import read_parquet, write_parquet
from headrace.runs.checkpoint_file import path_text, sync_folder


class LocalParquet:
    """A Parquet file as what a spool is made into: see spooled.py.

    Args:
        path: the file.
        carried: the types of what rows carry, where the source knows them.
    """

    def __init__(self, path: Path, carried: pa.Schema | None = None) -> None:
        self._path = path.parent.resolve() / path.name
        self._carried = carried

    def describe(self) -> str:
        """The absolute path."""
        return path_text(self._path)

    def look(self) -> Any:
        """Its size; None where there is none."""
        return {"bytes": self._path.stat().st_size} if self._path.exists() else None

    def check(self) -> None:
        """See that it can be there.

        Raises:
            ConfigError: its folder does not exist, or a folder has its name.
        """
        if not self._path.parent.is_dir() or self._path.is_dir():
            raise ConfigError(
                f"{self._path}: cannot be written",
                hint="The folder must exist, and no folder have the file's name.",
            )

    def publish(self, spool: Path) -> Any:
        """Write it beside its place, then rename it."""
        part = self._path.with_name(f"{self._path.name}.new")
        write_parquet(spool, part, self._carried)
        os.replace(part, self._path)
        sync_folder(self._path.parent)
        return self.look()

    def withdraw(self, out: BinaryIO) -> None:
        """Write its rows as lines.

        Raises:
            Conflict: it cannot be read.
        """
        try:
            read_parquet(self._path, out)
        except (pa.ArrowException, KeyError) as error:
            raise Conflict(f"{self._path} cannot be read: {error}") from None


class ParquetFormat:
    """A Parquet file as what an object of S3 holds: see s3_sink.py.

    Args:
        carried: the types of what rows carry, where the source knows them.
    """

    def __init__(self, carried: pa.Schema | None = None) -> None:
        self._carried = carried

    def make(self, spool: Path) -> Path:
        """A file beside the spool."""
        made = spool.with_name(f"{spool.name}.parquet")
        write_parquet(spool, made, self._carried)
        return made

    def unmake(self, body: Path, out: BinaryIO) -> None:
        """Write its rows as lines."""
        read_parquet(body, out)
