"""Dead letters: `/api/v1/models/{model}/dead-letters`."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request, Response

from api.fastapi_bridge import json_response, services_of
from api.http import messages
from api.http.bodies import read_body
from api.services import Services
from headrace.errors import InvalidRequest, LetterNotFound
from headrace.jobs.job import iso
from headrace.queue.dead_letters import PAGE_MAX, DeadLetter

router = APIRouter(tags=["dead letters"])

PATH: Final = "/api/v1/models/{model}/dead-letters"
PAGE_DEFAULT: Final = 100
NAMES_MAX: Final = 10_000
BODY_LIMIT_BYTES: Final = 4 * 1024 * 1024


class _Selection(msgspec.Struct, forbid_unknown_fields=True):
    """Which letters: these, or all that there are now."""

    ids: list[str] | None = None
    all: bool = False


_SELECTION: Final = msgspec.json.Decoder(_Selection)


@router.get(PATH, summary="The dead letters of a model's queue, the newest first")
async def list_letters(
    request: Request, model: str, limit: int = PAGE_DEFAULT, cursor: str = ""
) -> Response:
    """A page, and the `cursor` of the next one (null at the end)."""
    services = services_of(request)
    queue = services.catalog.get(model).queue
    if not 1 <= limit <= PAGE_MAX:
        raise InvalidRequest(f"query parameter limit: {limit} is not in 1 to {PAGE_MAX}")
    letters = await services.dead_letters.page(queue, limit=limit, before=_place(cursor))
    last = letters[-1] if len(letters) == limit else None
    return json_response(
        {
            "dead_letters": [_summary(letter) for letter in letters],
            "cursor": None if last is None else f"{last.died_us}-{last.name}",
        }
    )


@router.get(PATH + "/{name:path}", summary="One dead letter, whole")
async def show_letter(request: Request, model: str, name: str) -> Response:
    """With the handler's traceback, and the task message byte for byte."""
    services = services_of(request)
    letter = await services.dead_letters.show(services.catalog.get(model).queue, name)
    if letter is None:
        raise _unknown(model, name)
    return json_response(
        {**_summary(letter), "traceback": letter.traceback or None, "message": _raw(letter.raw)}
    )


@router.post(PATH + "/requeue", summary="Put dead letters back into the queue")
async def requeue_letters(request: Request, model: str) -> Response:
    """Each job keeps its id and its payload, and counts its attempts anew."""
    services = services_of(request)
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    outcomes = await services.dead_letters.requeue(queue, names)
    left = {name: what for name, what in zip(names, outcomes, strict=True) if what != "queued"}
    return json_response({"requeued": len(names) - len(left), "left": left})


@router.post(PATH + "/purge", summary="Remove dead letters for good")
async def purge_letters(request: Request, model: str) -> Response:
    """Their jobs stay failed."""
    services = services_of(request)
    queue = services.catalog.get(model).queue
    names = await _selected(services, request, queue)
    return json_response({"purged": await services.dead_letters.purge(queue, names)})


@router.delete(PATH + "/{name:path}", summary="Remove one dead letter for good")
async def purge_letter(request: Request, model: str, name: str) -> Response:
    """Its job stays failed."""
    services = services_of(request)
    if not await services.dead_letters.purge(services.catalog.get(model).queue, [name]):
        raise _unknown(model, name)
    return json_response({"purged": 1})


async def _selected(services: Services, request: Request, queue: str) -> list[str]:
    body = await read_body(messages.Request(request.scope, request.receive), BODY_LIMIT_BYTES)
    try:
        asked = _SELECTION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the body cannot be read: {error}", hint='Send {"ids": ["…"]} or {"all": true}.'
        ) from None
    if asked.all == (asked.ids is not None):
        raise InvalidRequest('the body is to hold either "ids" or "all": true')
    if asked.ids is None:
        return await services.dead_letters.all_names(queue)
    if len(asked.ids) > NAMES_MAX:
        raise InvalidRequest(
            f"{len(asked.ids)} ids are more than one request takes",
            hint=f"Send {NAMES_MAX} at a time, or all.",
        )
    return asked.ids


def _place(cursor: str) -> tuple[int, str] | None:
    if not cursor:
        return None
    died, _, name = cursor.partition("-")
    if not (died.isascii() and died.isdigit() and name):
        raise InvalidRequest(
            f"query parameter cursor: {cursor[:64]!r} is none of ours",
            hint="Send the cursor of the page before, as it is.",
        )
    return int(died), name


def _summary(letter: DeadLetter) -> dict[str, Any]:
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


def _raw(raw: bytes) -> dict[str, str]:
    """The message as text where it is text, else as base64."""
    try:
        return {"text": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _unknown(model: str, name: str) -> LetterNotFound:
    return LetterNotFound(
        f"the queue of model {model} has no dead letter {name[:128]!r}",
        hint=f"GET /api/v1/models/{model}/dead-letters lists them.",
    )
