"""Installs a model's requirements.txt into an environment of its own, kept by the file's hash.

An environment sees the packages of the server below its own. If the server has a package in a
version that fits, pip does not install it again. But uv installs everything that the file names.

A process that uses an environment holds a shared lock on its folder until it ends. A worker removes
at its start what no registered model names and no process has used for a week.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, last_line
from headrace.models.store import DOOMED, lock_path, locked, remove_unused

#: How long an environment that no process uses is kept, in seconds.
UNUSED_KEEP_S: Final = 7 * 86_400
_DONE: Final = "complete"
_PARENT: Final = "server.pth"
_SHOWN_CHARS: Final = 4000
_KEY_CHARS: Final = 32
_LOCK: Final = ".lock"


def installed(file: Path, environments: Path) -> Path:
    """Return the folder with the packages of a requirements.txt, for `sys.path`.

    Installs them first, unless the folder is complete. A process that wants the same ones waits
    meanwhile. The environment is kept for this process, also after an `exec`. The installer reads
    its own configuration and variables (`PIP_…`, `UV_…`).

    Raises:
        ConfigError: they cannot be installed; the message has the installer's output.
    """
    try:
        text = file.read_bytes()
        folder = environments / _key(text, file.parent)
        environments.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = environments / f"{folder.name}{_LOCK}"
        with locked(lock, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX):
            packages = _packages(folder)
            if not (folder / _DONE).exists():
                shutil.rmtree(folder, ignore_errors=True)
                venv.create(folder, with_pip=False, symlinks=True)
                _show_parent(packages)
                _install(file, folder)
                # Below it, the server's own packages come by sys.path.
                (packages / _PARENT).unlink()
                (folder / _DONE).touch()
            _hold(folder)
    except OSError as error:
        raise ConfigError(
            f"{file}: its packages cannot be installed in {environments}: {error}"
        ) from error
    return packages


def _hold(folder: Path) -> None:
    """Keep an environment until this process ends, or the program that it becomes."""
    # Some network file systems lock no folders; there `prune` removes nothing.
    with contextlib.suppress(OSError):
        held = lock_path(folder, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH)
        if held is not None:
            os.set_inheritable(held, True)
        os.utime(folder)


def prune(
    environments: Path, named: Iterable[Path], *, unused_s: float = UNUSED_KEEP_S
) -> list[str]:
    """Remove environments that no process uses or has used for this long; return their names.

    Args:
        named: the requirements.txt of each registered model; their environments are kept.
        unused_s: seconds since the last process that used it began.
    """
    try:
        kept = {_key(file.read_bytes(), file.parent) for file in named}
        paths = [path for path in sorted(environments.iterdir()) if path.is_dir()]
    except OSError:
        return []  # no environments, or a model whose file is unknown
    removed = []
    for path in paths:
        if path.name not in kept:
            with contextlib.suppress(OSError):
                if _remove(path, unused_s):
                    removed.append(path.name)
    return removed


def _remove(path: Path, unused_s: float) -> bool:
    if path.name.startswith(DOOMED):
        remove_unused(path, 0)
        return False
    # A process that has found the environment complete has this lock until it uses it.
    with locked(path.with_name(f"{path.name}{_LOCK}"), os.O_RDWR | os.O_CREAT) as lock:
        return lock is not None and remove_unused(path, unused_s)


def _key(text: bytes, base: Path) -> str:
    """Return the name of an environment: what changes it is in its hash."""
    # A file with options or paths depends on its folder.
    alone = not any(line.strip().startswith((b"-", b".", b"/")) for line in text.splitlines())
    parts = (text, sys.version.encode(), os.fsencode(sys.prefix), b"" if alone else bytes(base))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:_KEY_CHARS]


def _packages(folder: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder / "lib" / version / "site-packages"


def _show_parent(packages: Path) -> None:
    """Let the installer see what the server has."""
    own = [part for part in sys.path if part.endswith(("site-packages", "dist-packages"))]
    (packages / _PARENT).write_text("".join(f"{part}\n" for part in own))


def _install(file: Path, folder: Path) -> None:
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    if uv is not None:
        command = [uv, "pip", "install", "--quiet", "--python", python, "--requirement", str(file)]
    else:
        command = [
            sys.executable, "-m", "pip", "--python", python, "--quiet", "--no-input",
            "--disable-pip-version-check", "install", "--requirement", str(file),
        ]  # fmt: skip
    ended = subprocess.run(
        command, cwd=file.parent, capture_output=True, text=True, errors="replace",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if ended.returncode:
        output = (ended.stderr or ended.stdout).strip()[-_SHOWN_CHARS:]
        program = "uv" if uv else "pip"
        why = last_line(output) or f"its status is {ended.returncode}"
        # Clients see the last line.
        raise ConfigError(
            f"{file}: {program} cannot install it:\n{output}\n"
            f"{program} cannot install {file.name}: {why}",
            hint="correct the file, or the installer's settings (PIP_INDEX_URL, UV_INDEX_URL)",
        )
