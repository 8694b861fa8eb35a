"""A handler that answers with its version; `{"hold": path}` waits for that file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headrace.handler import Context
from tests.harness.handlers.trouble.tricky import Tricky

POLL_S = 0.01


class Versioned(Tricky):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.version = context.version

    def one(self, item: Any) -> Any:
        while "hold" in item and not Path(item["hold"]).exists():
            time.sleep(POLL_S)
        return {"version": self.version, "input": super().one(item)}
