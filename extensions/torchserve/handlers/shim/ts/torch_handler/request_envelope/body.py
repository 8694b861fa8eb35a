"""The envelope for handlers that take the bare values."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from ts.torch_handler.request_envelope.base import BaseEnvelope, sent_in


class BodyEnvelope(BaseEnvelope):
    """Gives the handler the value of each request instead of a row."""

    @override
    def parse_input(self, data: Any) -> Any:
        return [sent_in(row) for row in data]

    @override
    def format_output(self, data: Any) -> Any:
        return data
