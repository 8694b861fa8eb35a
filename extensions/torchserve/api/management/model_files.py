"""Find the files of a model that is registered: in the model store, in a folder, or at a URL.

A URL is fetched into the model store, as TorchServe does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from extensions.torchserve.api.replies import Kind, TorchServeError
from extensions.torchserve.config.archive import download, is_url, name_problem
from extensions.torchserve.config.settings import is_allowed
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.archive import ARCHIVES, is_archive
from headrace.models.extension import ModelFolder
from headrace.models.folder import PROGRAMS, read_file, read_folder
from headrace.models.source import SourceReader
from headrace.models.store import locked

#: The beginning of the name of a file that is being fetched into the model store.
PARTIAL: Final = ".headrace-fetch-"


class Found(NamedTuple):
    """The files of a model before its registration.

    Attributes:
        model: the manifest of its folder; None for a file that is no archive, despite its name.
        url: the parameter of the request, without the query of a URL.
        fetched: the complete file that gets its name by `keep`; None if nothing was fetched.
        target: the file that `keep` makes.
    """

    source: str
    model: ModelFolder | None
    url: str
    fetched: Path | None = None
    target: Path | None = None

    def keep(self) -> None:
        """Give a fetched file its name in the model store.

        Raises:
            TorchServeError: a file has this name already.
        """
        if self.fetched is None or self.target is None:
            return
        try:
            _name(self.fetched, self.target)
        except FileExistsError:
            raise _exists(self.target) from None
        except OSError as error:
            raise TorchServeError(
                Kind.INTERNAL, f"{self.target}: it cannot be written: {error.strerror}"
            ) from None

    def leave(self) -> None:
        """Keep a fetched file in the model store although no model has it."""
        with contextlib.suppress(TorchServeError):
            self.keep()
        if self.fetched is not None:
            self.fetched.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the file that `keep` has made."""
        if self.target is not None:
            self.target.unlink(missing_ok=True)


def shown(text: str) -> str:
    """Return a text of a client for a message."""
    return ascii(text[:200])


def interrupted(store: Path | None) -> list[Path]:
    """Return the files of registrations that have no end: it was killed, or lost a reply of Redis.

    A file in work is locked.
    """
    found = []
    for path in store.glob(f"{PARTIAL}*") if store is not None else ():
        with contextlib.suppress(OSError), locked(path, os.O_RDWR) as lock:
            if lock is not None:
                found.append(path)
    return found


def remove_interrupted(paths: Iterable[Path], used: Collection[str]) -> None:
    """Remove what registrations without an end have left: files, and their names by `keep`.

    Args:
        used: the sources of the registered models, read after that. A registration that ended
            after its change has a model, whose file stays.
    """
    for path in paths:
        with contextlib.suppress(OSError), locked(path, os.O_RDWR) as lock:
            if lock is None:
                continue
            target = path.with_name(path.name.removeprefix(PARTIAL).partition("-")[2])
            # `keep` gives the same file a second name.
            if target.name not in used and target.exists() and target.samefile(path):
                target.unlink(missing_ok=True)
            path.unlink(missing_ok=True)


@contextmanager
def found_model(
    settings: Settings, allowed: str, reader: SourceReader, url: str, *, has_handler: bool
) -> Iterator[Found]:
    """Find, fetch and read the files of a model, which may take long.

    A file that is fetched is removed at the end, unless `Found.keep` has given it its name.

    Args:
        allowed: `allowed_urls` of TorchServe's configuration.
        has_handler: whether the request or the configuration names a handler.

    Raises:
        TorchServeError: they do not exist, may not be used, or are broken.
    """
    store = settings.model_store
    if not is_url(url):
        path = _local(store, url)
        source = str(path)
        if store is not None and path.is_relative_to(store):
            source = str(path.relative_to(store))
        yield Found(source, _read(reader, path, source, has_handler=has_handler), url)
        return
    target = _target(store, allowed, url)
    with _partial(target) as file:
        _fetch(settings, allowed, url, file)
        model = _read(reader, file, target.name, has_handler=has_handler)
        yield Found(target.name, model, url.partition("?")[0], file, target)


def _local(store: Path | None, url: str) -> Path:
    """Return the path of a folder, or of a file or a folder in the model store."""
    path = Path(url)
    with contextlib.suppress(OSError, ValueError):
        if path.is_absolute() and path.is_dir():
            return path
        # The last part of any text is a name in the model store, as in TorchServe.
        names = [] if path.is_absolute() else [path]
        for name in (*names, Path(path.name)):
            if store is not None and name.name and (store / name).exists():
                return store / name
    where = f"the model store {store}" if store is not None else "the model store, which is not set"
    raise TorchServeError(
        Kind.MODEL_NOT_FOUND,
        f"There is no model at {shown(url)}. Name an archive or a folder in {where}",
    )


def _target(store: Path | None, allowed: str, url: str) -> Path:
    """Return the file in the model store that a URL is fetched into."""
    if not is_allowed(url, allowed):
        raise TorchServeError(
            Kind.MODEL_NOT_FOUND,
            f"{shown(url.partition('?')[0])}: this URL is not allowed. allowed_urls in "
            "config.properties has the expressions that one must match",
        )
    try:
        name = PurePosixPath(urlsplit(url).path).name
    except ValueError as error:
        raise _no_download(url, str(error)) from None
    if store is None:
        raise TorchServeError(Kind.BAD_REQUEST, "There is no model store to fetch a URL into")
    if not name or name.startswith("."):
        raise _no_download(url, "it names no file")
    _check_kind(Path(name), name)
    target = store / name
    # A file that is being fetched has the longest name.
    if problem := name_problem(str(_partial_path(target))):
        raise _no_download(url, problem)
    if target.exists():
        raise _exists(target)
    return target


def _name(file: Path, target: Path) -> None:
    """Give a file its name; FileExistsError if another file has it."""
    try:
        os.link(file, target)
    except OSError:
        if target.exists():
            raise FileExistsError from None
        file.rename(target)  # a file system without links


def _exists(target: Path) -> TorchServeError:
    return TorchServeError(
        Kind.INTERNAL,
        f"The model store has a file {target.name} already. Register it by this name, or remove it",
    )


def _no_download(url: str, why: str) -> TorchServeError:
    text = shown(url.partition("?")[0])
    return TorchServeError(Kind.DOWNLOAD, f"{text} cannot be downloaded: {why}")


def _partial_path(target: Path) -> Path:
    return target.with_name(f"{PARTIAL}{secrets.token_hex(4)}-{target.name}")


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Yield the name of a new file in the folder of the target, which is removed in the end.

    After an error it stays if `keep` has given the file its name: a model may be registered, and
    the next fetch finds out.
    """
    path = _partial_path(target)
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TorchServeError(
            Kind.INTERNAL, f"The model store cannot be written: {error.strerror}"
        ) from None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path
    except BaseException:
        # `Found.keep` gives a file a second name.
        if os.fstat(opened).st_nlink < 2:
            path.unlink(missing_ok=True)
        raise
    else:
        path.unlink(missing_ok=True)
    finally:
        os.close(opened)


def _fetch(settings: Settings, allowed: str, url: str, file: Path) -> None:
    try:
        if url[:5].lower() == "file:":
            _copy(settings, url, file)
        else:
            download(settings, allowed, url, file)
    except ConfigError as error:
        raise _no_download(url, error.message) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise _no_download(url, why or type(error).__name__) from None


def _copy(settings: Settings, url: str, file: Path) -> None:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise ConfigError("it names no file of this host; write file:///a/path")
    if not path.is_file():
        raise ConfigError("there is no such file")
    if path.stat().st_size > settings.model_limit_bytes:
        raise ConfigError(f"it is larger than {settings.model_limit_bytes:,} bytes")
    shutil.copyfile(path, file)


def _check_kind(path: Path, source: str) -> None:
    if not path.name.lower().endswith((*ARCHIVES, *PROGRAMS)):
        raise TorchServeError(
            Kind.INTERNAL,
            f"{shown(source)} is no archive: its name ends in none of {', '.join(ARCHIVES)}",
        )


def _read(
    reader: SourceReader, path: Path, source: str, *, has_handler: bool
) -> ModelFolder | None:
    """Return the manifest of a folder or a file; None for a file that is no archive."""
    try:
        if path.is_file():
            _check_kind(path, source)
            if _is_no_zip(path):
                return None  # TorchServe takes such a file for an archive without members
        place = reader.place(str(path.absolute()))
    except ConfigError as error:
        raise TorchServeError(Kind.INTERNAL, _text(error, path, source)) from None
    except OSError as error:
        raise TorchServeError(
            Kind.INTERNAL, f"{source}: it cannot be read: {error.strerror}"
        ) from None
    try:
        if place.is_dir():
            return read_folder(place, source, ("handler",) if has_handler else ())
        return read_file(place, source)
    except ConfigError as error:
        raise TorchServeError(Kind.INVALID_MODEL, _text(error, path, source)) from None
    except (OSError, ValueError) as error:
        raise TorchServeError(Kind.INTERNAL, f"{source}: it cannot be read: {error}") from None


def _is_no_zip(path: Path) -> bool:
    if not is_archive(path.name) or path.name.lower().endswith((".tar.gz", ".tgz")):
        return False
    with path.open("rb") as file:
        return file.read(2) != b"PK"


def _text(error: ConfigError, path: Path, source: str) -> str:
    """Return an error with the source that the client has named in place of its path."""
    return error.message.replace(str(path.absolute()), source)
