"""The handler that returns its input. Its time is the cost of the queue itself."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from headrace.handler import Handler


class Echo(Handler):
    """Returns its inputs. Needs no torch."""

    @override
    def inference(self, items: Any) -> Any:
        return items
