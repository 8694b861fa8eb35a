"""The items of a response as they are kept."""

from __future__ import annotations

from extensions.openai.schema.conversations import packed, shown_items, unpacked


def test_items_come_back_and_those_that_would_fill_the_memory_are_not_kept() -> None:
    items = shown_items("resp_a", [{"role": "user", "content": "Why?"}])
    assert unpacked(packed(items)) == items
    # It compresses to 4 KiB, and whoever goes on from it would have all of it.
    assert packed(shown_items("resp_a", [{"role": "user", "content": "a" * 4_000_000}])) == b""
