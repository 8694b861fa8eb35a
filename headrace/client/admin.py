"""An operator's calls: hold queues, look after dead letters. Each is a plan; see steps.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from headrace.client.errors import decoded
from headrace.client.models import DeadLetter, Queue, Requeued
from headrace.client.pages import Page, listed
from headrace.client.requests import JSON_HEADERS
from headrace.client.retries import Session, exchange
from headrace.client.sansio import HttpRequest, HttpResponse, Plan, Stream
from headrace.errors import InvalidRequest
from headrace.redis import keys

#: Letters that one request names at the most.
LETTERS_AT_ONCE: Final = 10_000
#: How long a request on a long queue may take, before its timeout counts.
MANY_S: Final = 120.0

Letters: TypeAlias = str | DeadLetter | Iterable[str | DeadLetter] | None


class _Letters(msgspec.Struct):
    dead_letters: list[DeadLetter]
    cursor: str | None = None


class _Purged(msgspec.Struct):
    purged: int


class _Cancelled(msgspec.Struct):
    cancelled: int


def pause_queue(session: Session, queue: str | Queue) -> Plan[None]:
    """Let no worker claim from a model's queue until it is resumed, also over restarts.

    Submits are taken as ever, and jobs that run go on.

    Args:
        session: the server.
        queue: the model's name, or one of `queues()`.

    Raises:
        QueueNotFound: there is no such model.
    """
    yield from _order(session, queue, "pause")


def resume_queue(session: Session, queue: str | Queue) -> Plan[None]:
    """Let workers claim from a model's queue again; they see it within a second.

    Raises:
        QueueNotFound: there is no such model.
    """
    yield from _order(session, queue, "resume")


def purge_queue(session: Session, queue: str | Queue) -> Plan[int]:
    """Cancel all that waits in a model's queue, also what is scheduled; jobs that run go on.

    Returns:
        How many jobs that ended. Where an answer was lost and the request was said again, those
        of the first time are not counted.

    Raises:
        QueueNotFound: there is no such model.
    """
    return decoded((yield from _order(session, queue, "purge")), _Cancelled).cancelled


def dead_letters(session: Session, model: str, *, limit: int | None = None) -> Stream[DeadLetter]:
    """The dead letters of a model, the newest first, page by page.

    Args:
        session: the server.
        model: the model's name.
        limit: so many at the most; None for all.

    Yields:
        Letters without their traceback and message, which `dead_letter` gives.

    Raises:
        ModelNotFound: there is no such model.
    """

    def read(answer: HttpResponse) -> Page[DeadLetter]:
        page = decoded(answer, _Letters)
        return [replace(letter, model=model) for letter in page.dead_letters], page.cursor

    return listed(session, _path(model), read, limit=limit)


def dead_letter(session: Session, model: str, id: str) -> Plan[DeadLetter]:
    """One dead letter, whole: with the handler's traceback and the task message.

    Raises:
        ModelNotFound: there is no such model.
        LetterNotFound: it has no such letter.
    """
    path = f"{_path(model)}/{quote(id, safe='')}"
    return replace(
        decoded((yield from exchange(session, HttpRequest("GET", path))), DeadLetter), model=model
    )


def requeue_dead_letters(
    session: Session, model: str, letters: Letters = None, *, all: bool = False
) -> Plan[Requeued]:
    """Put dead letters back at the end of their queue, as the jobs that they were.

    A job keeps its id, its input and its metadata, and counts its attempts anew.

    Args:
        session: the server.
        model: the model's name.
        letters: one, or several, or their ids.
        all: all that there are now, in place of `letters`.

    Returns:
        How many were put back, and which were left, with the reason. Where an answer was lost and
        the request was said again, those of the first time are `unknown`.

    Raises:
        ModelNotFound: there is no such model.
        InvalidRequest: neither letters are given nor `all`, or both.
    """
    count, left = 0, {}
    for body in _selections(letters, all=all):
        done = decoded((yield from _many(session, model, "requeue", body)), Requeued)
        count += done.requeued
        left.update(done.left)
    return Requeued(requeued=count, left=left)


def purge_dead_letters(
    session: Session, model: str, letters: Letters = None, *, all: bool = False
) -> Plan[int]:
    """Remove dead letters for good; their jobs stay failed.

    Args:
        session: the server.
        model: the model's name.
        letters: one, or several, or their ids.
        all: all that there are now, in place of `letters`.

    Returns:
        How many were removed; what is not there is not counted.

    Raises:
        ModelNotFound: there is no such model.
        InvalidRequest: neither letters are given nor `all`, or both.
    """
    count = 0
    for body in _selections(letters, all=all):
        count += decoded((yield from _many(session, model, "purge", body)), _Purged).purged
    return count


def _order(session: Session, queue: str | Queue, verb: str) -> Plan[HttpResponse]:
    name = queue.name if isinstance(queue, Queue) else keys.queue_name(queue)
    path = f"/api/v1/queues/{quote(name, safe='')}/{verb}"
    return (yield from exchange(session, HttpRequest("POST", path, wait_s=MANY_S)))


def _many(session: Session, model: str, verb: str, body: bytes) -> Plan[HttpResponse]:
    path = f"{_path(model)}/{verb}"
    request = HttpRequest("POST", path, body=body, headers=JSON_HEADERS, wait_s=MANY_S)
    return (yield from exchange(session, request))


def _path(model: str) -> str:
    return f"/api/v1/models/{quote(model, safe='')}/dead-letters"


def _selections(letters: Letters, *, all: bool) -> Iterator[bytes]:
    """The bodies that choose these letters, each named once."""
    if all == (letters is not None):
        raise InvalidRequest(
            "both letters and all of them are given" if all else "no letters are given",
            hint="Give letters or their ids, or all=True for all that there are.",
        )
    if letters is None:
        yield msgspec.json.encode({"all": True})
        return
    some: Iterable[Any] = [letters] if isinstance(letters, (str, DeadLetter)) else letters
    ids = list(dict.fromkeys(one if isinstance(one, str) else one.id for one in some))
    for at in range(0, len(ids), LETTERS_AT_ONCE):
        yield msgspec.json.encode({"ids": ids[at : at + LETTERS_AT_ONCE]})
