"""A handler that streams words, and waits for a file after each three of them.

The option `gates` is the folder of the files `gate-1` and `gate-2`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace import Handler

WORDS = [f"word-{n} " for n in range(6)]


class Told(Handler):
    def inference(self, items: list[Any]) -> Iterator[list[str | None]]:
        for n, word in enumerate(WORDS, 1):
            yield [word for _ in items]
            if n % 3 == 0:
                gate = Path(self.context.options["gates"]) / f"gate-{n // 3}"
                while not gate.exists():
                    time.sleep(0.05)
                    yield [None for _ in items]
