"""The lists of files and of batches: of all API keys, and of each.

A list is a zset of ids, whose scores are all the same. A key that may see its own items alone reads
the list of the key, so that it waits for no record of another key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.access.api_key import Caller
from headrace.redis.keys import Prefix
from headrace.redis.script_client import ScriptClient

#: The most records that are read at once.
_READ_MAX: Final = 500

Item = TypeVar("Item")


class ItemPage(NamedTuple, Generic[Item]):
    """A page of a list, and whether more items follow."""

    items: list[Item]
    has_more: bool


@dataclass(frozen=True, slots=True)
class IdLists(Generic[Item]):
    """The lists of one kind of items. Its methods block, and any thread may call them.

    Attributes:
        every: the list of all ids.
        of: the list of one key.
        read: returns the items of ids; None for an item that is gone.
        owner: returns the id of the API key that owns an item; "" for no key.
    """

    client: ScriptClient
    every: str
    of: Prefix
    read: Callable[[list[str]], list[Item | None]]
    owner: Callable[[Item], str]

    def page(
        self,
        caller: Caller,
        *,
        after: str,
        limit: int,
        newest_first: bool = True,
        keep: Callable[[Item], bool] = lambda _: True,
    ) -> ItemPage[Item]:
        """Return a page of the items that a caller may see; ids of items that are gone are removed.

        Args:
            after: the last id before the page, which need not exist; "" for the beginning.
            keep: whether an item belongs to the list.
        """
        key = self.every
        if not caller.sees_all and caller.key_id:
            key = self.of(caller.key_id)
        found: list[Item] = []
        while len(found) <= limit:
            # One item more than the limit shows whether more follow.
            count = min(_READ_MAX, max(20, limit + 1 - len(found)))
            ids = self._ids(key, after, count, newest_first)
            if not ids:
                break
            items = self.read(ids)
            self.remove([one for one, item in zip(ids, items, strict=True) if item is None], key)
            found += [
                item
                for item in items
                if item is not None and keep(item) and caller.may_see(self.owner(item))
            ]
            after = ids[-1]
        return ItemPage(found[:limit], len(found) > limit)

    def remove(self, ids: list[str], key: str = "") -> None:
        """Remove ids from the list of all, and from that of their key if it is given."""
        if ids:
            lists = dict.fromkeys([self.every, key or self.every])
            self.client.replies([("ZREM", name, *ids) for name in lists])

    def _ids(self, key: str, after: str, count: int, newest_first: bool) -> list[str]:
        if newest_first:
            command = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
        else:
            command = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
        return [raw.decode() for raw in self.client.execute(*command, "LIMIT", 0, count)]
