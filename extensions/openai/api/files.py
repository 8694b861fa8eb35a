"""`/v1/files`, by OpenAI's conventions: upload, list, retrieve, content, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar

import msgspec
from msgspec import Meta

from api.http.bodies import MULTIPART_TYPE, require_type
from api.http.messages import (
    NO_STORE,
    ClientGone,
    HangUp,
    Receive,
    Reply,
    Request,
    ResponseCutShort,
    StreamingReply,
    Write,
    json_reply,
)
from api.services import Services
from api.submission.decoding import read_query
from extensions.openai.api.upload import FILE_FIELD, Upload, file_too_large
from extensions.openai.batches.files import (
    BATCH,
    KEEP_MAX_S,
    NAME_MAX_CHARS,
    PART_BYTES,
    PURPOSES,
    FileReader,
    FileStore,
    FileWriter,
    StoredFile,
)
from extensions.openai.batches.lists import ItemPage
from extensions.openai.batches.store import BatchStore
from headrace.config.settings import Settings
from headrace.errors import HeadraceError, InvalidParameter, InvalidRequest
from headrace.jobs.job import Count, True_
from headrace.payloads.stores import THREADS, build_stores
from headrace.redis.script_client import ScriptClient

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

PAGE_MAX: Final = 10_000
#: The most bytes of a form besides its file.
FORM_MAX_BYTES: Final = 256 * 1024
FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
ANCHOR: Final = "created_at"


class FileService:
    """The files and batches, for one event loop. They connect when first used.

    Their stores block, so every call runs on a thread.

    Raises:
        ConfigError: the settings of the store are not valid.
    """

    def __init__(self, settings: Settings, redis_url: str) -> None:
        self._stores = build_stores(settings, redis_url)
        client = ScriptClient(self._stores.client)
        self.store = FileStore(self._stores, client, settings.file_ttl_s)
        self.batches = BatchStore(client, settings.file_ttl_s, settings.lease_ttl_s)
        self._threads = ThreadPoolExecutor(THREADS, "headrace-files")

    def close(self) -> None:
        """Start no more calls and close the stores."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stores.close()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))


class PageQuery(msgspec.Struct, kw_only=True):
    """The query of every list; each has its own limit."""

    after: Annotated[
        str, Meta(description="The last id of the previous page; it need not exist any more.")
    ] = ""


class FilesQuery(PageQuery, kw_only=True):
    """The query of a list of files."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = PAGE_MAX
    order: Annotated[Literal["asc", "desc"], Meta(description="By `created_at`.")] = "desc"
    purpose: str = ""


class File(msgspec.Struct, kw_only=True):
    """A file, as OpenAI's API shows it."""

    id: str
    object: Literal["file"] = "file"
    bytes: Count
    created_at: Annotated[Count, Meta(description="Seconds since 1970, like all times here.")]
    expires_at: Annotated[Count, Meta(description="When it is deleted.")]
    filename: str
    purpose: Annotated[str, Meta(extra_json_schema={"enum": [*PURPOSES]})]
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class Page(msgspec.Struct, kw_only=True):
    """A page of a list, as OpenAI's API shows it."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: Annotated[str | None, Meta(description="`after` of the next page.")]
    has_more: bool


class Files(Page, kw_only=True):
    """A page of files."""

    data: list[File]


class FileDeleted(msgspec.Struct, kw_only=True):
    """A file that was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: True_ = True


async def create_file(services: Services, request: Request) -> Reply:
    """Upload a file; it exists once all of it was received."""
    request.query()
    require_type(request, lambda kind: kind == MULTIPART_TYPE, "Send multipart/form-data.")
    limit_bytes = services.settings.file_limit_bytes
    declared = request.header(b"content-length")
    try:
        if declared and int(declared) > limit_bytes + FORM_MAX_BYTES:
            raise file_too_large(limit_bytes)
        upload = Upload(request.header(b"content-type").decode("latin-1"), limit_bytes)
        stored = await _receive(services.of(FileService), request, upload)
    except HeadraceError:
        request.drain = True
        raise
    return json_reply(file_object(stored))


async def _receive(files: FileService, request: Request, upload: Upload) -> StoredFile:
    """Write the file of a form while it arrives."""
    writer: FileWriter | None = None
    last = False
    try:
        while not last:
            piece, last = await _next_piece(request)
            # Parsing a few hundred kilobytes takes less time than a switch of threads.
            upload.feed(piece)
            if writer is None and upload.filename is not None:
                name = _filename(upload.filename)
                writer = await files.run(files.store.begin, name, request.caller.key_id)
            while writer is not None and upload.waiting_bytes >= (1 if last else PART_BYTES):
                await files.run(writer.add, upload.take(PART_BYTES))
        upload.check_complete()
        return await files.run(_finish, writer, upload.fields)
    except BaseException:
        if writer is not None:
            # A client that hung up does not wait for it, and no other client can see the file.
            await asyncio.shield(files.run(writer.abandon))
        raise
    finally:
        upload.close()


async def _next_piece(request: Request) -> tuple[bytes, bool]:
    """Return the next piece of the body, and whether it is the last one."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), not message.get("more_body")


def _finish(writer: FileWriter | None, fields: dict[str, str]) -> StoredFile:
    ttl_s = _asked_ttl_s(fields)
    if writer is None:
        raise InvalidParameter("the form has no file", FILE_FIELD)
    return writer.finish(BATCH, ttl_s)


async def list_files(services: Services, request: Request) -> Reply:
    """Return a page of files."""
    query = read_query(request, FilesQuery)
    files = services.of(FileService)
    purposes = [query.purpose] if query.purpose else PURPOSES
    page = await files.run(
        files.store.page,
        request.caller,
        after=query.after,
        limit=query.limit,
        newest_first=query.order == "desc",
        keep=lambda file: file.purpose in purposes,
    )
    return json_reply(Files(data=[file_object(file) for file in page.items], **ends_of(page)))


async def get_file(services: Services, request: Request, file_id: str) -> Reply:
    """Return one file, without its content."""
    request.query()
    files = services.of(FileService)
    return json_reply(file_object(await files.run(files.store.get, file_id, request.caller)))


async def delete_file(services: Services, request: Request, file_id: str) -> Reply:
    """Delete a file."""
    request.query()
    files = services.of(FileService)
    await files.run(files.store.delete, file_id, request.caller)
    return json_reply(FileDeleted(id=file_id))


async def get_file_content(
    services: Services, request: Request, file_id: str
) -> Reply | StreamingReply:
    """Return the bytes of a file."""
    request.query()
    files = services.of(FileService)
    reader = await files.run(files.store.open, file_id, request.caller)
    # Read before the answer begins, so that an error of the store is answered as one.
    first = await files.run(reader.read, 0)

    async def run(write: Write) -> None:
        if request.method != "HEAD":
            await _send(files, reader, first, write, request.receive)

    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in
                   reader.file.filename) or file_id  # fmt: skip
    return StreamingReply(
        200,
        run,
        b"application/octet-stream",
        (
            (b"content-length", b"%d" % reader.file.bytes),
            (b"content-disposition", f'attachment; filename="{name}"'.encode()),
            (b"x-content-type-options", b"nosniff"),
            NO_STORE,
        ),
    )


async def _send(
    files: FileService, reader: FileReader, first: bytes, write: Write, receive: Receive
) -> None:
    with HangUp(receive) as client:
        chunk, at = first, 0
        while chunk:
            await write(chunk)
            at += len(chunk)
            if client.gone:
                raise ClientGone
            try:
                chunk = await files.run(reader.read, at)
            except HeadraceError as error:
                logger.warning("file content cut short: %s", error.message)
                raise ResponseCutShort from None


def file_object(file: StoredFile) -> File:
    """Return a file as OpenAI's API shows it."""
    return msgspec.convert(file, File, from_attributes=True)


def ends_of(page: ItemPage[Any]) -> dict[str, Any]:
    """Return the first and the last id of a page, and whether another one follows."""
    first, last = (page.items[0].id, page.items[-1].id) if page.items else (None, None)
    return {"first_id": first, "last_id": last, "has_more": page.has_more}


def ttl_of(seconds: int, anchor: str, param: str) -> int:
    """Return how long a file is kept, in seconds.

    Raises:
        InvalidParameter: the time is out of range, or counts from another moment.
    """
    if anchor != ANCHOR:
        raise InvalidParameter(
            f"{param}: the time counts from when the file was made",
            param,
            hint=f"Send {ANCHOR} as anchor.",
        )
    if not 1 <= seconds <= KEEP_MAX_S:
        raise InvalidParameter(f"{param}: seconds is not in 1 to {KEEP_MAX_S}", param)
    return seconds


def _asked_ttl_s(fields: dict[str, str]) -> int | None:
    unknown = [name for name in fields if name not in FIELDS]
    if unknown:
        raise InvalidRequest(
            f"the form has an unknown field {unknown[0][:64]!r}",
            hint=f"Known here: {FILE_FIELD}, {', '.join(FIELDS)}.",
        )
    purpose = fields.get("purpose")
    if purpose != BATCH:
        wrong = "is missing" if purpose is None else f"{purpose[:32]!r} is not served here"
        raise InvalidParameter(f"purpose {wrong}", "purpose", hint=f"Send {BATCH!r}.")
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        if "expires_after[anchor]" in fields:
            raise InvalidParameter("expires_after has no seconds", "expires_after")
        return None
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9):
        raise InvalidParameter("expires_after[seconds] is not a number", "expires_after")
    return ttl_of(int(seconds), fields.get("expires_after[anchor]", ""), "expires_after")


def _filename(text: str) -> str:
    # Keep the name alone: some clients send a path.
    name = text.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in name if c.isprintable())[:NAME_MAX_CHARS] or "file"
