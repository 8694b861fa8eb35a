"""Rows as one Parquet file or object, made when all of them are there. Needs pyarrow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from typing_extensions import override

from extensions.runs.arrow import read_parquet, write_parquet
from extensions.runs.sinks.s3 import S3Target
from extensions.runs.sinks.spooled import Target
from extensions.runs.sources.s3 import RunBucket
from headrace.errors import ConfigError, Conflict
from headrace.payloads.stores import sync_folder
from headrace.text import path_text


class LocalParquet(Target):
    """The Parquet file that a spool becomes: see spooled.py."""

    def __init__(self, path: Path, carried: pa.Schema | None) -> None:
        self._path = path.parent.resolve() / path.name
        self._carried = carried

    @override
    def describe(self) -> str:
        return path_text(self._path)

    @override
    def state(self) -> Any:
        return {"bytes": self._path.stat().st_size} if self._path.exists() else None

    @override
    def check(self) -> None:
        if not self._path.parent.is_dir() or self._path.is_dir():
            raise ConfigError(
                f"{self._path}: cannot be written",
                hint="Its folder must exist, and it must not be a folder itself.",
            )

    @override
    def publish(self, spool: Path) -> Any:
        part = self._path.with_name(f"{self._path.name}.new")
        write_parquet(spool, part, self._carried)
        os.replace(part, self._path)
        sync_folder(self._path.parent)
        return self.state()

    @override
    def withdraw(self, out: BinaryIO) -> None:
        try:
            read_parquet(self._path, out)
        except (pa.ArrowException, KeyError) as error:
            raise Conflict(f"{self._path} cannot be read: {error}") from None


class S3Parquet(S3Target):
    """The Parquet object that a spool becomes."""

    def __init__(self, bucket: RunBucket, key: str, carried: pa.Schema | None) -> None:
        super().__init__(bucket, key)
        self._carried = carried

    @override
    def publish(self, spool: Path) -> Any:
        made = spool.with_name(f"{spool.name}.parquet")
        write_parquet(spool, made, self._carried)
        state = super().publish(made)
        made.unlink()
        return state

    @override
    def withdraw(self, out: BinaryIO) -> None:
        body = Path(f"{out.name}.object")
        try:
            with body.open("wb") as file:
                super().withdraw(file)
            read_parquet(body, out)
        finally:
            body.unlink(missing_ok=True)
