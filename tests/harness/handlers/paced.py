"""A handler whose batch takes a known time: 20 + n milliseconds."""

from __future__ import annotations

import time
from typing import Any

from headrace import Handler
from headrace.errors import InputError


class Paced(Handler):
    """Sleeps, so that replicas do not compete for cores. It refuses texts."""

    def preprocess(self, items: list[Any]) -> list[Any]:
        """Return the items, with an error for each text."""
        return [InputError("it is a text") if isinstance(one, str) else one for one in items]

    def inference(self, items: list[Any]) -> list[Any]:
        """Return the items after 20 + n milliseconds."""
        time.sleep(0.02 + 0.001 * len(items))
        return items
