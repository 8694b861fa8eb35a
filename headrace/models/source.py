"""Where a model comes from: a path, the model store, or a URL (`file`, `https`, `s3`).

A folder is used where it is. An archive is unpacked into the folder of unpacked models, and so is
what comes from a URL. What was fetched before is fetched again only if it has changed, and serves
while its server is away.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from headrace.config.allowed_urls import is_allowed, read_prefix, read_url
from headrace.config.settings import Settings
from headrace.errors import ConfigError, HeadraceError
from headrace.models.archive import ARCHIVES, Limits, is_archive, unpack
from headrace.models.download import Download, Downloader, Unreachable
from headrace.models.extension import ModelFolder
from headrace.models.folder import PROGRAMS, read_file, read_folder
from headrace.models.store import Note, UnpackedModels
from headrace.payloads.s3_client import NO_ANSWER, Bucket, S3Failure, s3_client

logger = logging.getLogger(__name__)

#: Below the state directory.
FOLDER: Final = "models"
_URL: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")
_CHUNK_BYTES: Final = 1024 * 1024
_S3_TRIES: Final = 3


class SourceReader:
    """Reads the sources of models.

    Args:
        settings: the model store, the allowed URLs, the limits and the state directory.
        base_dir: where relative paths start.
    """

    def __init__(self, settings: Settings, base_dir: Path) -> None:
        self.unpacked = UnpackedModels(settings.state_dir.absolute() / FOLDER)
        self._settings = settings
        self._base_dir = base_dir
        self._limits = Limits(total_bytes=settings.model_limit_bytes)

    def read(
        self, source: str, sha256: str | None = None, given: Collection[str] = ()
    ) -> ModelFolder:
        """Return the model at a source.

        Args:
            sha256: the digest that it must have; None for any.
            given: the keys that the models file sets itself.

        Raises:
            ConfigError: it does not exist, is not allowed, has another digest, or is no model.
        """
        label = source.partition("?")[0]
        with reading(label):
            path = self._placed(source, sha256)
            return read_folder(path, label, given) if path.is_dir() else read_file(path, label)

    def place(self, source: str) -> Path:
        """Return the folder or file of a source, fetched and unpacked; or raise ConfigError."""
        with reading(source.partition("?")[0]):
            return self._placed(source)

    def _placed(self, source: str, sha256: str | None = None) -> Path:
        digest = sha256.removeprefix("sha256:") if sha256 else None
        path = self._on_disk(source)
        if path is not None:
            return self._unpacked(path, digest)
        if source.startswith(("https://", "http://", "s3://")):
            return self._fetched(source, digest)
        raise ConfigError(
            f"{source.partition('?')[0]}: this kind of URL cannot be used",
            hint="use a path, file://, https:// or s3://",
        )

    def folder(self, source: str) -> Path | None:
        """Return the folder that a source is; None if it is an archive, a program or elsewhere."""
        try:
            path = self._on_disk(source)
            return path if path is not None and path.is_dir() else None
        except (ConfigError, OSError, ValueError, RuntimeError):
            return None

    def _on_disk(self, source: str) -> Path | None:
        """Return the path of a source; None for the URL of another host."""
        if source.startswith("file://"):
            return _file_path(source)
        return None if _URL.match(source) else self._local(source)

    def _local(self, source: str) -> Path:
        path = self._base_dir / Path(source).expanduser()
        store = self._settings.model_store
        if path.exists() or store is None or Path(source).is_absolute():
            return path
        if ".." in Path(source).parts:
            return path
        in_store = store / source
        return in_store if in_store.exists() else path

    def _unpacked(self, path: Path, digest: str | None) -> Path:
        """Return the folder of a local archive; a folder or a program as it is."""
        if path.is_dir():
            if digest is not None:
                raise ConfigError(
                    f"{path}: a folder has no digest", hint="remove sha256, or pack the folder"
                )
            return path
        if not path.is_file():
            raise ConfigError(f"{path}: it does not exist", hint=self._where())
        if not is_archive(path.name):
            if digest is not None:
                _check(digest_of(path), digest, str(path))
            return path
        with self.unpacked.noted(str(path), _name_of(str(path))) as note:
            validator = _validator(path)
            held = self._held(note, validator, digest)
            if held is not None:
                return held
            found = digest_of(path)
            _check(found, digest, str(path))

            def fill(folder: Path) -> None:
                unpack(path, folder, self._limits)
                if _validator(path) != validator:
                    raise ConfigError(f"{path}: it was changed while it was read")

            folder = self.unpacked.add(found, fill)
            note.write(validator, found)
            return folder

    def _held(self, note: Note, validator: str, digest: str | None) -> Path | None:
        known = note.read()
        if known is None or known.validator != validator or digest not in (None, known.key):
            return None
        return self.unpacked.hold(known.key)

    def _where(self) -> str:
        store = self._settings.model_store
        more = f", and in the model store {store}" if store else ""
        return f"a relative path starts at {self._base_dir}{more}"

    def _fetched(self, source: str, digest: str | None) -> Path:
        """Return the folder or file of a URL."""
        label = source.partition("?")[0]
        suffix = _suffix(PurePosixPath(urlsplit(source).path).name)
        if not suffix:
            raise ConfigError(
                f"{label}: a URL must end in {', '.join((*ARCHIVES, *PROGRAMS))}",
                hint="serve the model under such a name",
            )
        if source.startswith("http://") and digest is None:
            raise ConfigError(
                f"{label}: http:// needs sha256, as anybody on the way could replace the file",
                hint="use https://, or add the key sha256",
            )
        with self.unpacked.noted(source, _name_of(source)) as note:
            key = self._fetched_key(source, label, digest, suffix, note)
        folder = self.unpacked.folder / key
        return folder if suffix in ARCHIVES else folder / f"model{suffix}"

    def _fetched_key(
        self, source: str, label: str, digest: str | None, suffix: str, note: Note
    ) -> str:
        """Return the name of the folder of a URL, which is there and held."""
        if digest is not None:
            key = _key(digest, suffix)
            if self.unpacked.hold(key) is not None:
                return key
        known = note.read()
        before = known.key if known is not None and self.unpacked.hold(known.key) else ""
        etag = known.validator if known is not None and before and digest is None else ""
        try:
            with self._download(source, etag) as download:
                if download is None:
                    return before
                key = self._keep(download, label, digest, suffix)
        except Unreachable:
            if not before or digest is not None:
                raise
            logger.warning("%s does not answer; what was fetched before is used", label)
            return before
        note.write(download.etag, key)
        return key

    def _keep(self, download: Download, label: str, digest: str | None, suffix: str) -> str:
        """Write a download to where it is kept; return the name of its folder."""
        with self.unpacked.temporary() as folder:
            file = folder / f"model{suffix}"
            found = _save(download, file, label)
            _check(found, digest, label)

            def fill(into: Path) -> None:
                if suffix in ARCHIVES:
                    unpack(file, into, self._limits, label)
                else:
                    file.rename(into / file.name)

            key = _key(found, suffix)
            self.unpacked.add(key, fill)
            return key

    @contextmanager
    def _download(self, source: str, etag: str) -> Iterator[Download | None]:
        settings = self._settings
        if source.startswith("s3://"):
            with _s3(source, settings, etag) as download:
                yield download
            return
        allowed = [read_prefix(text) for text in settings.allowed_urls]
        downloader = Downloader(
            lambda text: is_allowed(read_url(text), allowed),
            settings.model_limit_bytes,
            settings.model_fetch_timeout_s,
        )
        with downloader.fetch(source, etag) as download:
            yield download


@contextmanager
def reading(label: str) -> Iterator[None]:
    """Raise a ConfigError for a model that cannot be read, without paths of the system."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"{label}: it cannot be read: {text or type(error).__name__}",
            hint="correct its options, or let this process read its files",
        ) from error


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; raise ConfigError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error


def _check(found: str, digest: str | None, label: str) -> None:
    if digest is not None and found != digest:
        raise ConfigError(
            f"{label}: its digest is sha256:{found}, but sha256:{digest} was given",
            hint="correct sha256, or find out who has changed the file",
        )


def _validator(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def _name_of(source: str) -> str:
    return hashlib.blake2b(source.encode(errors="replace"), digest_size=16).hexdigest()


def _suffix(name: str) -> str:
    lower = name.lower()
    return next((suffix for suffix in (*ARCHIVES, *PROGRAMS) if lower.endswith(suffix)), "")


def _key(digest: str, suffix: str) -> str:
    """Return the name of a folder; an archive and a program may be the same bytes."""
    return digest if suffix in ARCHIVES else digest + suffix


def _file_path(source: str) -> Path:
    parts = urlsplit(source)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(f"{source}: it names no file of this host", hint="write file:///a/path")
    return Path(path)


def _save(download: Download, path: Path, label: str) -> str:
    """Write a download into a file; return its SHA-256."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in download.chunks:
            digest.update(chunk)
            try:
                file.write(chunk)
            except OSError as error:
                raise ConfigError(
                    f"{label}: it cannot be kept: {error.strerror}", hint="make room on the disk"
                ) from error
    return digest.hexdigest()


class _ModelBucket(Bucket):
    """A bucket of models; its errors are for the operator."""

    @override
    def error_for(self, failure: S3Failure) -> HeadraceError:
        url = f"s3://{self.name}/{failure.key}"
        if failure.code == NO_ANSWER:
            return Unreachable(f"{url}: the S3 server does not answer: {failure.text}")
        return ConfigError(
            f"{url}: {failure.text}", hint="correct the URL, or the credentials of boto"
        )


@contextmanager
def _s3(source: str, settings: Settings, etag: str) -> Iterator[Download | None]:
    """Yield an object of S3; None if it still has this ETag."""
    parts = urlsplit(source)
    key = parts.path.removeprefix("/")
    if not parts.netloc or not key:
        raise ConfigError(f"{source}: it names no object", hint="write s3://bucket/key")
    bucket = _ModelBucket(parts.netloc, s3_client(settings.payload_endpoint_url, 1, _S3_TRIES))
    with bucket.errors(key, reading=True):
        head = bucket.client.head_object(Bucket=bucket.name, Key=key)
    if head["ContentLength"] > settings.model_limit_bytes:
        raise ConfigError(
            f"{source}: it is larger than {settings.model_limit_bytes:,} bytes",
            hint="raise model_limit_bytes (HEADRACE_MODEL_LIMIT_BYTES)",
        )
    if etag and head["ETag"] == etag:
        yield None
        return
    with bucket.errors(key, reading=True):
        found = bucket.client.get_object(Bucket=bucket.name, Key=key, IfMatch=head["ETag"])
    yield Download(head["ETag"], _s3_chunks(bucket, key, found["Body"]))


def _s3_chunks(bucket: Bucket, key: str, body: Any) -> Iterator[bytes]:
    with bucket.errors(key, reading=True):
        yield from body.iter_chunks(_CHUNK_BYTES)
