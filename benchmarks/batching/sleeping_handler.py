"""Handlers that take as long as a device does: `pause_s` a batch, from the model's options."""

from __future__ import annotations

import time
from typing import Any

from typing_extensions import override

from headrace.handler import Handler


class Sleeping(Handler):
    """Sleeps, then returns its inputs."""

    @override
    def inference(self, items: Any) -> Any:
        time.sleep(self.context.options["pause_s"])
        return items


class Overlapped(Sleeping):
    """Does the same, and lets Headrace prepare the next batch meanwhile."""

    overlap = True
