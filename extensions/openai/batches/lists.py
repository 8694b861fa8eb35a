"""The records of files and of batches, and their lists: of all API keys, and of each.

A list is a zset of ids, whose scores are all the same. A key that may see its own items alone reads
the list of the key, so that it waits for no record of another key.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.access.api_key import EVERYBODY, Caller
from headrace.errors import HeadraceError
from headrace.jobs.ids import new_id
from headrace.redis.keys import Prefix
from headrace.redis.script_client import ScriptClient
from headrace.redis.scripts import fields_of

#: The most records that are read at once.
_READ_MAX: Final = 500


class Owned(Protocol):
    """What an API key owns."""

    @property
    def owner(self) -> str:
        """The id of the key; "" without keys."""


Item = TypeVar("Item", bound=Owned)


class ItemPage(NamedTuple, Generic[Item]):
    """A page of a list, and whether more items follow."""

    items: list[Item]
    has_more: bool


class RecordStore(ABC, Generic[Item]):
    """The records of one kind of items, and their lists.

    Its methods block, and any thread may call them. All raise a BrokerError if Redis is
    unavailable. A caller sees only its own items.

    Attributes:
        prefix: how its ids begin.
        record_key: the record of an id.
        every: the list of all ids.
        of: the list of one key.
    """

    prefix: ClassVar[str]
    record_key: ClassVar[Prefix]
    every: ClassVar[str]
    of: ClassVar[Prefix]

    def __init__(self, client: ScriptClient) -> None:
        self.client = client

    def new_id(self) -> str:
        """Return an id that sorts behind those created before."""
        return self.prefix + new_id().replace("-", "")

    @abstractmethod
    def decode(self, item_id: str, record: Mapping[bytes, bytes]) -> Item | None:
        """Read a record (the fields of HGETALL); None if there is no such item."""

    @abstractmethod
    def missing(self, item_id: str) -> HeadraceError:
        """Return the error for an unknown id."""

    def get(self, item_id: str, caller: Caller = EVERYBODY) -> Item:
        """Return an item.

        Raises:
            FileMissing, BatchNotFound: no such item.
        """
        is_id = re.fullmatch(self.prefix + "[0-9a-f]{32}", item_id)
        found = self._read([item_id])[0] if is_id else None
        if found is None or not caller.may_see(found.owner):
            raise self.missing(item_id)
        return found

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
            items = self._read(ids)
            self.remove([one for one, item in zip(ids, items, strict=True) if item is None], key)
            found += [
                item
                for item in items
                if item is not None and keep(item) and caller.may_see(item.owner)
            ]
            after = ids[-1]
        return ItemPage(found[:limit], len(found) > limit)

    def remove(self, ids: list[str], key: str = "") -> None:
        """Remove ids from the list of all, and from that of their key if it is given."""
        if ids:
            lists = dict.fromkeys([self.every, key or self.every])
            self.client.replies([("ZREM", name, *ids) for name in lists])

    def decoded(self, item_id: str, flat: Sequence[bytes]) -> Item:
        """Return the item of a record that a script has returned; errors as for `get`."""
        found = self.decode(item_id, fields_of(flat))
        if found is None:
            raise self.missing(item_id)
        return found

    def _read(self, ids: list[str]) -> list[Item | None]:
        found = self.client.read_all([("HGETALL", self.record_key(one)) for one in ids])
        return [self.decode(one, record) for one, record in zip(ids, found, strict=True)]

    def _ids(self, key: str, after: str, count: int, newest_first: bool) -> list[str]:
        if newest_first:
            command = ("ZREVRANGEBYLEX", key, f"({after}" if after else "+", "-")
        else:
            command = ("ZRANGEBYLEX", key, f"({after}" if after else "-", "+")
        return [raw.decode() for raw in self.client.execute(*command, "LIMIT", 0, count)]
