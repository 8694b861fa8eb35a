"""Pages of a list of ids that sort by the time of creation. Independent of files and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headrace.redis.script_client import ScriptClient

Item = TypeVar("Item")


class FilePage(NamedTuple, Generic[Item]):
    """A page of a list.

    Attributes:
        items: the page.
        has_more: more items follow.
    """

    items: list[Item]
    has_more: bool


def page_of(
    client: ScriptClient,
    key: str,
    read: Callable[[list[str]], list[Item | None]],
    *,
    after: str,
    limit: int,
    newest_first: bool = True,
    keep: Callable[[Item], bool] = lambda _: True,
) -> FilePage[Item]:
    """Return a page of the items of a zset of ids; ids of items that are gone are removed from it.

    Args:
        client: Redis.
        key: the zset, whose scores are all the same.
        read: returns the items of ids; None for an item that is gone.
        after: the last id before the page, which need not exist; "" for the beginning.
        limit: the most items.
        newest_first: the order.
        keep: whether an item belongs to the list.

    Raises:
        BrokerError: Redis is unavailable.
    """
    found: list[Item] = []
    while len(found) <= limit:
        # One item more than the limit shows whether more follow.
        count = min(500, max(20, limit + 1 - len(found)))
        ids = _ids(client, key, after, count, newest_first)
        if not ids:
            break
        items = read(ids)
        gone = [one for one, item in zip(ids, items, strict=True) if item is None]
        if gone:
            client.execute("ZREM", key, *gone)
        found += [item for item in items if item is not None and keep(item)]
        after = ids[-1]
    return FilePage(found[:limit], len(found) > limit)


def _ids(client: ScriptClient, key: str, after: str, count: int, newest_first: bool) -> list[str]:
    if newest_first:
        command = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
    else:
        command = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
    return [raw.decode() for raw in client.execute(*command, "LIMIT", 0, count)]
