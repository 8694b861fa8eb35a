"""Stored responses: read again, with what they were given, so that conversations can continue.

What a response was given is a field of its job's record. So it is deleted with the response, and
seen by the same API keys.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from api.http.messages import Reply, Request, json_reply
from api.routes.jobs.job import visible_job
from api.services import Services
from api.submission.decoding import read_query
from extensions.openai.api.jobs import result_of
from extensions.openai.redis.keys import ITEMS
from extensions.openai.schema.answers import Generation, read_generation
from extensions.openai.schema.conversations import (
    as_items,
    reference_of,
    responses_of,
    unpacked,
)
from extensions.openai.schema.errors import BadField
from extensions.openai.schema.responses import (
    OutputMessage,
    Response,
    ResponseRequest,
    echo_of,
    response_of,
)
from headrace.errors import InvalidParameter, JobNotFound
from headrace.jobs.ids import is_id
from headrace.jobs.job import Job, State
from headrace.redis import keys

_AGAIN: Final = "Send the earlier messages in input."
#: A parameter with which clients ask for more output; only this kind of it can be there.
_INCLUDE: Final = re.compile(
    rb"include(?:\[\]|%5B%5D)?=(?!message\.output_text\.logprobs)", re.IGNORECASE
)


async def visible_response(services: Services, request: Request, response_id: str) -> Job:
    """Return the job of a response.

    Raises:
        JobNotFound: it does not exist, or the caller may not see it.
    """
    unknown = JobNotFound(
        f"there is no response {response_id[:128]!r}",
        hint="It never existed, it was deleted, or its result_ttl has passed since it ended.",
    )
    try:
        job = await visible_job(services, request.caller, response_id)
    except JobNotFound:
        raise unknown from None
    if echo_of(job) is None:
        raise unknown
    return job


async def generation_of(services: Services, job: Job) -> Generation | None:
    """Return the result of a job that has succeeded; else None."""
    if job.state is not State.SUCCEEDED:
        return None
    return read_generation(await result_of(services, job), job.model)


async def outcome_of(services: Services, job: Job) -> tuple[Response, Generation | None]:
    """Return a response, and its text; one whose result is no text has failed."""
    try:
        generation = await generation_of(services, job)
    except InvalidParameter as error:
        return response_of(job, None, error.message), None
    return response_of(job, generation), generation


class ItemsQuery(msgspec.Struct):
    """The query of the items of a response."""

    limit: Annotated[Annotated[int, Meta(ge=1, le=100)], Meta(description="How many items.")] = 20
    order: Annotated[
        Literal["asc", "desc"], Meta(description="`desc` begins with the last item.")
    ] = "desc"
    after: Annotated[str, Meta(description="Only the items behind this id.")] = ""


class Items(msgspec.Struct, kw_only=True):
    """Items of a response, in the requested order."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


async def _kept_items(services: Services, job: Job) -> list[dict[str, Any]]:
    kept = await services.queue.call_once(("HGET", keys.job(job.id), ITEMS))
    if kept:
        return unpacked(kept)
    why = "" if kept is None else ": they are too long"
    raise BadField(
        f"the items of the response {job.id!r} are not kept{why}",
        "previous_response_id", hint=_AGAIN,
    )  # fmt: skip


async def continued(
    services: Services, request: Request, asked: ResponseRequest
) -> ResponseRequest:
    """Return a request whose input has all of its conversation.

    Raises:
        BadField: it names a response or an item that there is not, or that cannot be continued.
    """
    items = as_items(asked.input)
    if asked.previous_response_id is None and not any(map(reference_of, items)):
        return asked
    conversations = _Conversations(services, request)
    whole: list[dict[str, Any]] = []
    if asked.previous_response_id is not None:
        whole += await conversations.of(asked.previous_response_id)
    most = services.settings.body_limit_bytes
    for place, item in enumerate(items):
        reference = reference_of(item)
        if reference is not None:
            item = await conversations.item(place, reference)
            most -= len(msgspec.json.encode(item))
            if most < 0:
                raise BadField(
                    f"input[{place}]: the items to which the input refers are too long together",
                    "input", hint="Refer to fewer.",
                )  # fmt: skip
        whole.append(item)
    return msgspec.structs.replace(asked, input=whole)


class _Conversations:
    """The conversations that one request names; each is read once."""

    def __init__(self, services: Services, request: Request) -> None:
        self._services = services
        self._request = request
        self._known: dict[str, list[dict[str, Any]]] = {}

    async def of(self, response_id: str) -> list[dict[str, Any]]:
        """Return the items up to the end of a response."""
        try:
            return await self._read(response_id)
        except JobNotFound:
            raise BadField(
                f"there is no response {response_id[:128]!r}", "previous_response_id",
                openai="previous_response_not_found",
                hint=f"It never existed, it was deleted or it has expired. {_AGAIN}",
            ) from None  # fmt: skip

    async def item(self, place: int, item_id: str) -> dict[str, Any]:
        """Return the item to which the item at a place refers."""
        for response_id in responses_of(item_id):
            try:
                await self._read(response_id)
            except JobNotFound:
                continue
        # The conversation of another response can have it, if its own one is gone.
        for items in self._known.values():
            for item in items:
                if item["id"] == item_id:
                    return item
        raise BadField(
            f"input[{place}]: there is no item {item_id[:128]!r}", "input",
            hint=f"It never existed, or its response was deleted or has expired. {_AGAIN}",
        )  # fmt: skip

    async def _read(self, response_id: str) -> list[dict[str, Any]]:
        known = self._known.get(response_id)
        if known is not None:
            return known
        if not is_id(response_id):
            raise JobNotFound(response_id)
        job = await visible_response(self._services, self._request, response_id)
        response, _ = await outcome_of(self._services, job)
        if response.status not in ("completed", "incomplete"):
            raise BadField(
                f"the response {job.id!r} has the status {response.status}",
                "previous_response_id", hint="Continue one that is completed.",
            )  # fmt: skip
        for item in response.output:
            for text in item.content if isinstance(item, OutputMessage) else ():
                text.logprobs = []  # no input of the next one
        output = msgspec.to_builtins(response.output)
        items = [*await _kept_items(self._services, job), *output]
        self._known[response_id] = items
        return items


def drop_include(request: Request) -> None:
    """Drop what a query wants to include and no response here has."""
    parts = request.query_string.split(b"&")
    request.query_string = b"&".join(part for part in parts if not _INCLUDE.match(part))


async def list_input_items(services: Services, request: Request, response_id: str) -> Reply:
    """List what a response was given, with the conversation before it."""
    drop_include(request)
    query = read_query(request, ItemsQuery)
    items = await _kept_items(services, await visible_response(services, request, response_id))
    if query.order == "desc":
        items.reverse()
    if query.after:
        places = [place for place, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise BadField(f"the response has no item {query.after[:128]!r}", "after")
        items = items[places[0] + 1 :]
    page = items[: query.limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = len(page) < len(items)
    return json_reply(Items(data=page, first_id=first, last_id=last, has_more=more))
