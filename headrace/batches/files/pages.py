"""Pages of ids that sort by when they were made. Knows no files and no batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from headrace.redis.script_client import ScriptClient

Item = TypeVar("Item")


class FilePage(NamedTuple, Generic[Item]):
    """Some of a list.

    Attributes:
        has_more: there are some behind them.
    """

    items: list[Item]
    has_more: bool


def page_of(
    caller: ScriptClient,
    key: str,
    read: Callable[[list[str]], list[Item | None]],
    *,
    after: str,
    limit: int,
    newest_first: bool = True,
    keep: Callable[[Item], bool] = lambda _: True,
) -> FilePage[Item]:
    """A page of what a zset of ids lists; ids of which nothing is left are taken out of it.

    Args:
        caller: Redis.
        key: the zset, whose scores are all the same.
        read: the items of ids; None for what is gone.
        after: an id, which need not be there any more; "" for the beginning.
        limit: items at the most.
        newest_first: the order.
        keep: whether an item is wanted.

    Raises:
        BrokerError: Redis does not answer.
    """
    found: list[Item] = []
    while len(found) <= limit:
        # One more than is asked for says whether there are more.
        count = min(500, max(20, limit + 1 - len(found)))
        ids = _ids(caller, key, after, count, newest_first)
        if not ids:
            break
        items = read(ids)
        gone = [one for one, item in zip(ids, items, strict=True) if item is None]
        if gone:
            caller.execute("ZREM", key, *gone)
        found += [item for item in items if item is not None and keep(item)]
        after = ids[-1]
    return FilePage(found[:limit], len(found) > limit)


def _ids(caller: ScriptClient, key: str, after: str, count: int, newest_first: bool) -> list[str]:
    if newest_first:
        command = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
    else:
        command = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
    return [raw.decode() for raw in caller.execute(*command, "LIMIT", 0, count)]
