"""The envelope of version 1 of KServe's protocol."""

from __future__ import annotations

import json
from typing import Any

from typing_extensions import override

from ts.torch_handler.request_envelope.base import BaseEnvelope, sent_in


class KServeEnvelope(BaseEnvelope):
    """Gives the handler the `instances` of the first request; returns one object for them."""

    @override
    def parse_input(self, data: Any) -> Any:
        return parsed(sent_in(data[0])).get("instances")

    @override
    def format_output(self, data: Any) -> Any:
        return [{"explanations" if explains(self.context) else "predictions": data}]


def parsed(body: Any) -> Any:
    """Return the JSON of a body, which may be bytes."""
    return json.loads(body) if isinstance(body, (bytes, bytearray)) else body


def explains(context: Any) -> bool:
    """Return whether the first request asks for an explanation."""
    return bool(context.get_request_header(0, "explain") == "True")
