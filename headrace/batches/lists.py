"""The lists of files and of batches: of all API keys, and of each.

A list is a zset of ids, whose scores are all the same. A key that may see its own items alone reads
the list of the key, so that it waits for no record of another key. An older version writes the
list of all alone. So a further list has the ids that are in the list of their key. Before a page of
a key is read, the other ids are added to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from headrace.access.api_key import Caller
from headrace.errors import BrokerFull
from headrace.redis import keys
from headrace.redis.keys import Prefix
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import pages_of

#: The lists are compared this often, in seconds, even if they have the same length.
COMPARED_S: Final = 60.0
#: The most records that are read at once.
_READ_MAX: Final = 500

Item = TypeVar("Item")


class ItemPage(NamedTuple, Generic[Item]):
    """A page of a list, and whether more items follow."""

    items: list[Item]
    has_more: bool


class IdLists(Generic[Item]):
    """The lists of one kind of items. Its methods block, and any thread may call them.

    Args:
        client: Redis.
        every: the list of all ids.
        indexed: the list of those that are in the list of their key.
        of: the list of one key.
        read: returns the items of ids; None for an item that is gone.
        owner: returns the id of the API key that owns an item; "" for no key.
    """

    def __init__(
        self,
        client: ScriptClient,
        every: str,
        indexed: str,
        of: Prefix,
        read: Callable[[list[str]], list[Item | None]],
        owner: Callable[[Item], str],
    ) -> None:
        self._client = client
        self._every = every
        self._indexed = indexed
        self._of = of
        self._read = read
        self._owner = owner
        # When the lists were compared last, by the monotonic clock.
        self._compared_at = -COMPARED_S

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
            caller: the API key of the request.
            after: the last id before the page, which need not exist; "" for the beginning.
            limit: the most items.
            newest_first: the order.
            keep: whether an item belongs to the list.
        """
        key = self._every
        if not caller.sees_all and caller.key_id and self._index_missing():
            key = self._of(caller.key_id)
        found: list[Item] = []
        while len(found) <= limit:
            # One item more than the limit shows whether more follow.
            count = min(_READ_MAX, max(20, limit + 1 - len(found)))
            ids = self._ids(key, after, count, newest_first)
            if not ids:
                break
            items = self._read(ids)
            self.remove([one for one, item in zip(ids, items, strict=True) if item is None], key)
            found += [
                item
                for item in items
                if item is not None and keep(item) and caller.may_see(self._owner(item))
            ]
            after = ids[-1]
        return ItemPage(found[:limit], len(found) > limit)

    def remove(self, ids: list[str], key: str = "") -> None:
        """Remove ids from the lists, and from that of their key if it is given."""
        if ids:
            lists = dict.fromkeys([self._every, self._indexed, key or self._every])
            self._client.replies([("ZREM", name, *ids) for name in lists])

    def _ids(self, key: str, after: str, count: int, newest_first: bool) -> list[str]:
        if newest_first:
            command = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
        else:
            command = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
        return [raw.decode() for raw in self._client.execute(*command, "LIMIT", 0, count)]

    def _index_missing(self) -> bool:
        """Add to the lists of their keys what an older version has added to the list of all.

        Returns:
            Whether these lists have everything; not if Redis is full.
        """
        now = time.monotonic()
        lengths = self._client.read_all([("ZCARD", self._every), ("ZCARD", self._indexed)])
        # An older version may have added as many as it removed.
        if lengths[0] == lengths[1] and now - self._compared_at < COMPARED_S:
            return True
        every, indexed = self._every, self._indexed
        missing, gone = self._client.read_all(
            [("ZDIFF", 2, every, indexed), ("ZDIFF", 2, indexed, every)]
        )
        try:
            for some in pages_of([raw.decode() for raw in missing], _READ_MAX):
                self._index(list(some))
        except BrokerFull:
            return False
        for some in pages_of(gone, _READ_MAX):
            self._client.execute("ZREM", indexed, *some)
        self._compared_at = now
        return True

    def _index(self, ids: list[str]) -> None:
        items = self._read(ids)
        by_key: dict[str, list[str]] = {}
        for one, item in zip(ids, items, strict=True):
            if item is not None:
                by_key.setdefault(self._owner(item), []).append(one)
        self.remove([one for one, item in zip(ids, items, strict=True) if item is None])
        # If this stops halfway, what is not in the last list is added again.
        lists = [(self._of(key), some) for key, some in by_key.items() if key]
        lists.append((self._indexed, [one for some in by_key.values() for one in some]))
        for name, some in lists:
            if some:
                members = [value for one in some for value in ("0", one)]
                self._client.execute("ZADD", name, *members)
                self._client.execute("EXPIRE", name, keys.FILES_TTL_S)
