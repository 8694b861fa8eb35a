"""`/v1/files`, by OpenAI's conventions: upload, list, retrieve, content, delete."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec

from api.components.files import FileService
from api.http.bodies import MULTIPART_TYPE, require_type
from api.http.messages import (
    NO_STORE,
    ClientGone,
    Receive,
    Reply,
    Request,
    ResponseCutShort,
    StreamingReply,
    Write,
    hung_up,
)
from api.http.multipart import FILE_FIELD, Upload, file_too_large
from api.http.openai_errors import InvalidParameter
from api.services import Services
from headrace.batches.files.pages import FilePage
from headrace.batches.files.record import BATCH, KEEP_MAX_S, NAME_MAX_CHARS, StoredFile
from headrace.batches.files.store import PART_BYTES, FileReader, FileWriter
from headrace.errors import HeadraceError, InvalidRequest

logger = logging.getLogger(__name__)

PAGE_MAX: Final = 10_000
#: The most bytes of a form besides its file.
FORM_MAX_BYTES: Final = 256 * 1024
FIELDS: Final = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
ANCHOR: Final = "created_at"

_LIST: Final = frozenset({"after", "limit", "order", "purpose"})
_NONE: Final = frozenset[str]()


async def create_file(services: Services, request: Request) -> Reply:
    """Receive a file part by part; it exists once all of it was received."""
    request.query(_NONE)
    require_type(request, lambda kind: kind == MULTIPART_TYPE, "Send multipart/form-data.")
    limit_bytes = services.settings.file_limit_bytes
    declared = request.header(b"content-length")
    try:
        if declared and int(declared) > limit_bytes + FORM_MAX_BYTES:
            raise file_too_large(limit_bytes)
        upload = Upload(request.header(b"content-type").decode("latin-1"), limit_bytes)
        stored = await _receive(services.files, request, upload)
    except HeadraceError:
        request.drain = True
        raise
    return _reply(file_object(stored))


class _FileReceiver:
    """A file that is being received.

    Attributes:
        draft: the part that is written; None before the file begins.
    """

    def __init__(self, files: FileService, upload: Upload, owner: str) -> None:
        self._owner = owner
        self.draft: FileWriter | None = None
        self._files = files
        self._upload = upload

    async def read(self, request: Request) -> None:
        """Receive the whole form."""
        ended = False
        while not ended:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            # Parsing a few hundred kilobytes takes less time than a switch of threads.
            self._upload.feed(message.get("body", b""))
            ended = not message.get("more_body")
            await self._write(least=1 if ended else PART_BYTES)
        self._upload.check_complete()

    async def _write(self, least: int) -> None:
        upload, run = self._upload, self._files.run
        if upload.filename is None:
            return
        if self.draft is None:
            self.draft = await run(self._files.store.begin, _filename(upload.filename), self._owner)
        while upload.waiting_bytes >= least:
            await run(self.draft.add, upload.take(PART_BYTES))

    async def finish(self) -> StoredFile:
        """Make the draft a file."""
        ttl_s = _asked_ttl_s(self._upload.fields)
        if self.draft is None:
            raise InvalidParameter("the form has no file", FILE_FIELD)
        return await self._files.run(self.draft.finish, BATCH, ttl_s)


async def _receive(files: FileService, request: Request, upload: Upload) -> StoredFile:
    receiver = _FileReceiver(files, upload, request.caller.key_id)
    try:
        await receiver.read(request)
        return await receiver.finish()
    except BaseException:
        if receiver.draft is not None:
            # A client that hung up does not wait for it, and no other client can see the file.
            await asyncio.shield(files.run(receiver.draft.abandon))
        raise


async def list_files(services: Services, request: Request) -> Reply:
    """Return a page of files."""
    query = request.query(_LIST)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order: {order[:32]!r} is neither asc nor desc", "order")
    files = services.files
    page = await files.run(
        files.store.page,
        request.caller,
        after=query.get("after", ""),
        limit=limit_of(query, PAGE_MAX, PAGE_MAX),
        newest_first=order == "desc",
        purpose=query.get("purpose", ""),
    )
    return _reply(list_object(page, file_object))


async def get_file(services: Services, request: Request, file_id: str) -> Reply:
    """Return one file, without its content."""
    request.query(_NONE)
    files = services.files
    return _reply(file_object(await files.run(files.store.get, file_id, request.caller)))


async def delete_file(services: Services, request: Request, file_id: str) -> Reply:
    """Delete a file."""
    request.query(_NONE)
    files = services.files
    await files.run(files.store.delete, file_id, request.caller)
    return _reply({"id": file_id, "object": "file", "deleted": True})


async def get_content(services: Services, request: Request, file_id: str) -> Reply | StreamingReply:
    """Stream the bytes of a file."""
    request.query(_NONE)
    files = services.files
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
    gone = asyncio.create_task(hung_up(receive))
    try:
        chunk, at = first, 0
        while chunk:
            await write(chunk)
            at += len(chunk)
            if gone.done():
                raise ClientGone
            try:
                chunk = await files.run(reader.read, at)
            except HeadraceError as error:
                logger.warning("file content cut short: %s", error.message)
                raise ResponseCutShort from None
    finally:
        gone.cancel()


def file_object(file: StoredFile) -> dict[str, Any]:
    """Return a file as OpenAI's API shows it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def list_object(page: FilePage[Any], shown: Any) -> dict[str, Any]:
    """Return a page as OpenAI's API shows it."""
    data = [shown(item) for item in page.items]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.has_more,
    }


def limit_of(query: dict[str, str], default: int, most: int) -> int:
    """Return the number of entries per page.

    Raises:
        InvalidParameter: the value is not a number from 1 to `most`.
    """
    text = query.get("limit")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= most):
        raise InvalidParameter(f"limit: {text[:32]!r} is not a number from 1 to {most}", "limit")
    return int(text)


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


def _reply(document: dict[str, Any]) -> Reply:
    return Reply(200, msgspec.json.encode(document), headers=(NO_STORE,))
