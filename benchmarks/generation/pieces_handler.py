"""The handler of streams.py: pieces that cost nothing to make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from headrace.handler import Handler


class Pieces(Handler):
    """An input is `{"pieces": N}`; its stream has as many pieces."""

    @override
    def inference(self, items: list[Any]) -> Iterator[list[str | None]]:
        """Yield a piece for each item that wants more."""
        counts = [item["pieces"] for item in items]
        for number in range(max(counts)):
            text = f"piece {number:4} of it "
            yield [text if number < count else None for count in counts]
