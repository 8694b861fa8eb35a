"""Dead letters: `/api/v1/models/{model}/dead-letters`."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from api.http.bodies import read_body
from api.http.messages import Reply, Request, json_reply
from api.services import Services
from headrace.errors import InvalidRequest, LetterNotFound
from headrace.jobs.job import iso
from headrace.queue.dead_letters import PAGE_MAX, DeadLetter

PATH: Final = "/api/v1/models/{model}/dead-letters"
PAGE_DEFAULT: Final = 100
NAMES_MAX: Final = 10_000
BODY_LIMIT_BYTES: Final = 4 * 1024 * 1024
_LIST: Final = frozenset({"limit", "cursor"})


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters: those of these ids, or all present ones."""

    ids: list[str] | None = None
    all: bool = False


_SELECTION: Final = msgspec.json.Decoder(Selection)


async def list_dead_letters(services: Services, request: Request, model: str) -> Reply:
    """Return a page, and the `cursor` of the next one (null at the end)."""
    queue = services.catalog.get(model).queue
    query = request.query(_LIST, ignore_unknown=True)
    limit, before = _limit(query.get("limit")), _position(query.get("cursor", ""))
    letters = await services.dead_letters.page(queue, limit=limit, before=before)
    last = letters[-1] if len(letters) == limit else None
    cursor = None if last is None else f"{last.died_us}-{last.name}"
    return json_reply({"dead_letters": [_summary(letter) for letter in letters], "cursor": cursor})


async def get_dead_letter(services: Services, _: Request, model: str, name: str) -> Reply:
    """Return a dead letter with the handler's traceback and the task message byte for byte."""
    letter = await services.dead_letters.show(services.catalog.get(model).queue, name)
    if letter is None:
        raise _unknown(model, name)
    return json_reply(
        {**_summary(letter), "traceback": letter.traceback or None, "message": _message(letter.raw)}
    )


async def requeue(services: Services, request: Request, model: str) -> Reply:
    """Requeue dead letters; each job keeps its id and input, and its attempts restart at 0."""
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    outcomes = await services.dead_letters.requeue(queue, names)
    left = {name: why for name, why in zip(names, outcomes, strict=True) if why != "queued"}
    return json_reply({"requeued": len(names) - len(left), "left": left})


async def purge(services: Services, request: Request, model: str) -> Reply:
    """Remove dead letters; their jobs stay failed."""
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    return json_reply({"purged": await services.dead_letters.purge(queue, names)})


async def purge_one(services: Services, _: Request, model: str, name: str) -> Reply:
    """Remove one dead letter; its job stays failed."""
    if not await services.dead_letters.purge(services.catalog.get(model).queue, [name]):
        raise _unknown(model, name)
    return json_reply({"purged": 1})


async def _selected(services: Services, request: Request, queue: str) -> list[str]:
    body = await read_body(request, BODY_LIMIT_BYTES, fixed=True)
    try:
        selection = _SELECTION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the body cannot be read: {error}", hint='Send {"ids": ["…"]} or {"all": true}.'
        ) from None
    if selection.all == (selection.ids is not None):
        raise InvalidRequest('the body must have either "ids" or "all": true')
    if selection.ids is None:
        return await services.dead_letters.all_names(queue)
    if len(selection.ids) > NAMES_MAX:
        raise InvalidRequest(
            f"{len(selection.ids)} ids are more than one request takes",
            hint=f"Send {NAMES_MAX} at a time, or all.",
        )
    return selection.ids


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= PAGE_MAX):
        raise InvalidRequest(f"query parameter limit: {text[:32]!r} is not in 1 to {PAGE_MAX}")
    return int(text)


def _position(cursor: str) -> tuple[int, str] | None:
    if not cursor:
        return None
    died, _, name = cursor.partition("-")
    if not (died.isascii() and died.isdigit() and name):
        raise InvalidRequest(
            f"query parameter cursor: {cursor[:64]!r} is not a cursor of this API",
            hint="Send the cursor of the previous page unchanged.",
        )
    return int(died), name


def _summary(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.name,
        "job_id": letter.job_id or None,
        "reason": letter.reason,
        "error": letter.message,
        "attempts": letter.attempts,
        "created_at": iso(letter.created_us),
        "died_at": iso(letter.died_us),
        "requeueable": bool(letter.job_id),
    }


def _message(raw: bytes) -> dict[str, str]:
    """Return the message as text if it is UTF-8, else as base64."""
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _unknown(model: str, name: str) -> LetterNotFound:
    return LetterNotFound(
        f"the queue of model {model} has no dead letter {name[:128]!r}",
        hint=f"GET /api/v1/models/{model}/dead-letters lists them.",
    )
