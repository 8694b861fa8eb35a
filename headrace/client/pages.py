"""Lists that the API gives page by page, as streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

from headrace.client.retries import Session, exchange
from headrace.client.sansio import HttpRequest, HttpResponse, Stream, Yield

T = TypeVar("T")
#: The items of a page, and the cursor of the next one.
Page: TypeAlias = tuple[list[T], str | None]

PAGE: Final = 1000


def listed(
    session: Session,
    path: str,
    read: Callable[[HttpResponse], Page[T]],
    *,
    limit: int | None,
    query: Mapping[str, str] | None = None,
) -> Stream[T]:
    """All that a list holds, in its order.

    Args:
        session: the server.
        path: the list's.
        read: reads an answer.
        limit: so many at the most; None for all.
        query: what is listed.
    """
    asked = {"limit": str(PAGE if limit is None else min(PAGE, limit)), **(query or {})}
    left = limit
    while left is None or left > 0:
        items, cursor = read((yield from exchange(session, HttpRequest("GET", path, dict(asked)))))
        yield Yield(items if left is None else items[:left])
        if left is not None:
            left -= len(items)
        if not cursor:
            return
        asked["cursor"] = cursor
