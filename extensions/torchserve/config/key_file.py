"""The file key_file.json: the keys of TorchServe's token authorization.

The launcher writes it, and all API processes read it. The process that gets a request for a new key
replaces the key in the file. So each process reads the file again when it has changed. A key
without an expiration time is valid as long as the file has it. An operator writes such a key into
the file, or sets it as a variable (`STATIC_KEYS`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from headrace.errors import ConfigError

#: What a key is for: the management API, predictions, or requests for a new key of these two.
KeyKind = Literal["management", "inference", "API"]
#: The variables with keys that do not expire.
STATIC_KEYS: Final[Mapping[str, KeyKind]] = {
    "HEADRACE_TORCHSERVE_MANAGEMENT_KEY": "management",
    "HEADRACE_TORCHSERVE_INFERENCE_KEY": "inference",
    "HEADRACE_TORCHSERVE_API_KEY": "API",
}


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key; it expires at an ISO 8601 time with its zone, or never."""

    key: Annotated[str, msgspec.Meta(min_length=1)]
    expires: str | None = msgspec.field(name="expiration time", default=None)

    def is_text(self, text: str) -> bool:
        """Return whether a text is this key, in a time that does not depend on the text."""
        return hmac.compare_digest(text.encode(), self.key.encode())

    def expired(self, now: datetime) -> bool:
        """Return whether it has expired; so has a key whose time cannot be read."""
        if self.expires is None:
            return False
        try:
            return datetime.fromisoformat(self.expires) <= now
        except (ValueError, TypeError):
            return True


class Keys(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the file; None for a key that it does not have."""

    management: Key | None = None
    inference: Key | None = None
    API: Key | None = None

    def of(self, kind: KeyKind) -> Key | None:
        """Return the key of this kind."""
        found: Key | None = getattr(self, kind)
        return found


def make_keys(path: Path, minutes: float, static: Mapping[KeyKind, str] | None = None) -> Keys:
    """Write a file with new keys at the start of a server; return them.

    Keys of an existing file stay if it has an inference or a management key that does not expire:
    then an operator has written it.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    with _changing(path):
        before = _written(path)
        kept = before if before is not None and _is_of_operator(before) else Keys()
        given = Keys(**{kind: Key(text) for kind, text in (static or {}).items()})
        keys = Keys(
            given.management or kept.management or _new_key(minutes),
            given.inference or kept.inference or _new_key(minutes),
            given.API or kept.API or Key(_new_text()),
        )
        _write(path, keys)
        return keys


def static_keys(environ: Mapping[str, str]) -> dict[KeyKind, str]:
    """Return the keys that are set as variables."""
    return {kind: environ[name] for name, kind in STATIC_KEYS.items() if environ.get(name)}


def renew(path: Path, kind: KeyKind, minutes: float) -> Key:
    """Replace a key in the file, and return the new one. A key that does not expire stays.

    Raises:
        ConfigError: the file cannot be read or written, or does not exist.
    """
    with _changing(path):
        keys = read_keys(path)
        present = keys.of(kind)
        if present is not None and present.expires is None:
            return present
        key = _new_key(minutes)
        _write(path, msgspec.structs.replace(keys, **{kind: key}))
        return key


def remove_keys(path: Path) -> None:
    """Remove the file when a server stops, unless an operator has written it."""
    with contextlib.suppress(ConfigError, OSError):
        keys = _written(path)
        if keys is None or not _is_of_operator(keys):
            path.unlink()


def read_keys(path: Path) -> Keys:
    """Return the keys of a file.

    Raises:
        ConfigError: it does not exist, or cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Keys)
    except OSError as error:
        raise ConfigError(
            f"{path}: it cannot be read: {error.strerror}",
            hint="the server writes it when it starts; start it again",
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: it is not a file of keys: {error}",
            hint='write {"management": {"key": …}, "inference": {"key": …}, "API": {"key": …}}',
        ) from error


def present_keys(path: Path) -> Keys:
    """Return the keys of a file, which is read again when it has changed.

    Raises:
        ConfigError: the file does not exist, or cannot be read.
    """
    try:
        status = path.stat()
    except OSError:
        return read_keys(path)
    return _keys_of(path, status.st_mtime_ns, status.st_ino, status.st_size)


@lru_cache(maxsize=16)
def _keys_of(path: Path, *_signature: int) -> Keys:
    return read_keys(path)


def _is_of_operator(keys: Keys) -> bool:
    own = (keys.management, keys.inference)
    return any(key is not None and key.expires is None for key in own)


def _written(path: Path) -> Keys | None:
    """Return the keys of a file; None without a file, or if it cannot be read."""
    try:
        return read_keys(path)
    except ConfigError:
        return None


def _new_key(minutes: float) -> Key:
    expires = datetime.now(UTC) + timedelta(minutes=minutes)
    return Key(_new_text(), expires.isoformat().replace("+00:00", "Z"))


def _new_text() -> str:
    return secrets.token_urlsafe(6)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Let one process at a time change the file."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # The lock is on the folder, as the file itself is replaced.
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(
            f"{path}: it cannot be written: {error.strerror}",
            hint="start the server in a folder that it may write, or disable token authorization",
        ) from error


def _write(path: Path, keys: Keys) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
