"""Dead letters: `/api/v1/models/{model}/dead-letters`."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.messages import Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import JsonDecoder, read_cursor, read_query
from headrace.errors import InvalidRequest, LetterNotFound
from headrace.queue.dead_letters import PAGE_MAX, DeadLetter
from headrace.schema.members import time_of
from headrace.schema.operation import DeadLetterEntry, Purged, Requeued

PATH: Final = "/api/v1/models/{model}/dead-letters"
NAMES_MAX: Final = 10_000
BODY_LIMIT_BYTES: Final = 4 * 1024 * 1024
CURSOR: Final = "^([0-9]+-.+)?$"


class LettersQuery(msgspec.Struct):
    """The query of a list."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[
        str, Meta(description="Of the previous page.", extra_json_schema={"pattern": CURSOR})
    ] = ""


class DeadLetters(msgspec.Struct):
    """A page of dead letters."""

    dead_letters: list[DeadLetterEntry]
    cursor: Annotated[str | None, Meta(description="The cursor of the next page; null at the end.")]


class TaskMessage(msgspec.Struct):
    """The task message byte for byte: `text`, or `base64` if it is not UTF-8."""

    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class DeadLetterDetail(DeadLetterEntry, frozen=True, kw_only=True):
    """A dead letter with the handler's traceback and the message."""

    traceback: str | None
    message: TaskMessage


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """These ids, or all present dead letters."""

    ids: Annotated[list[str], Meta(max_length=NAMES_MAX)] | None = None
    all: bool = False


_SELECTION: Final = JsonDecoder(Selection)


async def list_dead_letters(services: Services, request: Request, model: str) -> Reply:
    """List the dead letters of a model's queue, newest first, a page at a time."""
    queue = services.catalog.get(model).queue
    query = read_query(request, LettersQuery, ignore_unknown=True)
    before = read_cursor(CURSOR, query.cursor) if query.cursor else None
    letters = await services.dead_letters.page(queue, limit=query.limit, before=before)
    last = letters[-1] if len(letters) == query.limit else None
    cursor = None if last is None else f"{last.died_us}-{last.name}"
    return json_reply(DeadLetters([DeadLetterEntry(**_shown(one)) for one in letters], cursor))


async def get_dead_letter(services: Services, _: Request, model: str, name: str) -> Reply:
    """Return a dead letter with the handler's traceback and the task message byte for byte."""
    letter = await services.dead_letters.show(services.catalog.get(model).queue, name)
    if letter is None:
        raise _unknown(model, name)
    try:
        message = TaskMessage(text=letter.raw.decode())
    except UnicodeDecodeError:
        message = TaskMessage(base64=base64.b64encode(letter.raw).decode())
    traceback = letter.traceback or None
    return json_reply(DeadLetterDetail(**_shown(letter), traceback=traceback, message=message))


async def requeue(services: Services, request: Request, model: str) -> Reply:
    """Requeue dead letters; each job keeps its id and input, and its attempts restart at 0."""
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    outcomes = await services.dead_letters.requeue(queue, names)
    left: dict[str, str] = {
        name: why for name, why in zip(names, outcomes, strict=True) if why != "queued"
    }
    request.noted = f"{len(names) - len(left)} dead letters requeued"
    return json_reply(Requeued(requeued=len(names) - len(left), left=left))


async def purge(services: Services, request: Request, model: str) -> Reply:
    """Remove dead letters; their jobs stay failed."""
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    purged = await services.dead_letters.purge(queue, names)
    request.noted = f"{purged} dead letters removed"
    return json_reply(Purged(purged))


async def purge_one(services: Services, request: Request, model: str, name: str) -> Reply:
    """Remove one dead letter; its job stays failed."""
    if not await services.dead_letters.purge(services.catalog.get(model).queue, [name]):
        raise _unknown(model, name)
    request.noted = name
    return json_reply(Purged(1))


async def _selected(services: Services, request: Request, queue: str) -> list[str]:
    selection = await _SELECTION.read(request, BODY_LIMIT_BYTES)
    if selection.all == (selection.ids is not None):
        raise InvalidRequest(
            'the body must have either "ids" or "all": true',
            hint='Send {"ids": ["…"]} for some dead letters, or {"all": true} for all.',
        )
    if selection.ids is None:
        return await services.dead_letters.all_names(queue)
    return selection.ids


def _shown(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.name,
        "job_id": letter.job_id or None,
        "reason": letter.reason,
        "error": letter.message,
        "attempts": letter.attempts,
        "created_at": time_of(letter.created_us),
        "died_at": time_of(letter.died_us),
        "requeueable": bool(letter.job_id),
    }


def _unknown(model: str, name: str) -> LetterNotFound:
    return LetterNotFound(
        f"the queue of model {model} has no dead letter {name[:128]!r}",
        hint=f"GET /api/v1/models/{model}/dead-letters lists them.",
    )
