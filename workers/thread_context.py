"""The context of a handler whose verbs run in several threads, each with a batch of its own."""

from __future__ import annotations

import threading
from typing import Any, Final

from headrace.handler import Context


def overlaps(handler: Any) -> bool:
    """Whether a handler (or its class) lets its verbs run at the same time on different batches."""
    return bool(getattr(handler, "overlap", False))


class _AtHand(threading.local):
    request_ids: list[str]
    content_types: list[str]


#: There is one context in a model process.
_at_hand: Final = _AtHand()


class ThreadContext(Context):
    """A context in which `request_ids` and `content_types` are those of the thread's own batch."""

    @property  # type: ignore[explicit-override] # it overrides a field
    def request_ids(self) -> list[str]:
        """The job ids of the batch at hand in this thread."""
        return getattr(_at_hand, "request_ids", [])

    @request_ids.setter
    def request_ids(self, ids: list[str]) -> None:
        _at_hand.request_ids = ids

    @property  # type: ignore[explicit-override] # it overrides a field
    def content_types(self) -> list[str]:
        """The content types of the batch at hand in this thread."""
        return getattr(_at_hand, "content_types", [])

    @content_types.setter
    def content_types(self, kinds: list[str]) -> None:
        _at_hand.content_types = kinds
