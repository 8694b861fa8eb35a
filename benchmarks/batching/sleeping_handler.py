"""Handlers that take as long as a device does: `pause_s` a batch and `item_s` an item."""

from __future__ import annotations

import time
from typing import Any

from typing_extensions import override

from headrace.handler import Handler


class Sleeping(Handler):
    """Sleeps, then returns its inputs."""

    @override
    def inference(self, items: Any) -> Any:
        options = self.context.options
        time.sleep(options["pause_s"] + options.get("item_s", 0.0) * len(items))
        return items


class Overlapped(Sleeping):
    """Does the same, and lets Headrace prepare the next batch meanwhile."""

    overlap = True
