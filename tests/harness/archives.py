"""Archives for tests: good ones, and ones of each hostile kind, written byte by byte if needed."""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

HANDLER = """\
from headrace import Handler

class Twice(Handler):
    def inference(self, items):
        return [item * 2 for item in items]
"""
MODEL = {"model.yaml": "name: twice\nversion: '3'\nhandler: handler.py\n", "handler.py": HANDLER}


def write_folder(folder: Path, files: Mapping[str, str] = MODEL) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_zip(path: Path, members: Sequence[tuple[str, bytes]], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            # ZipInfo cuts a name at a NUL, as it does when it reads one.
            info.filename = name
            info.external_attr = (mode or stat.S_IFREG | 0o644) << 16
            archive.writestr(info, body)
    return path


def write_tar(path: Path, members: Sequence[tuple[tarfile.TarInfo | str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for found, body in members:
            info = found if isinstance(found, tarfile.TarInfo) else tarfile.TarInfo(found)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def linked(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def good_members() -> list[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in MODEL.items()]


def packed_zeros(count: int) -> bytes:
    """A gzip of so many zero bytes, made in pieces."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
        left = count
        while left:
            step = min(left, 1 << 20)
            packed.write(bytes(step))
            left -= step
    return file.getvalue()


def write_wheel(folder: Path, name: str, module: str) -> None:
    """Build a wheel by hand: one module, and what installers read."""
    info = f"{name}-1.0.dist-info"
    members = {
        f"{name}.py": module,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{member},,\n" for member in (*members, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, text in {**members, f"{info}/RECORD": record}.items():
            wheel.writestr(member, text)
