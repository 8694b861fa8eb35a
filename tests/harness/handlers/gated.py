"""A handler whose inputs run until the test says so: `{"until": path}` waits for that file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.harness.handlers.trouble.tricky import Tricky

POLL_S = 0.01


class Gated(Tricky):
    def one(self, item: Any) -> Any:
        if isinstance(item, dict) and item.get("until"):
            while not Path(item["until"]).exists():
                time.sleep(POLL_S)
            return item
        return super().one(item)
