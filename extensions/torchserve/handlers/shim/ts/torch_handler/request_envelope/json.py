"""The envelope `{"instances": [...]}`, as TensorFlow Serving has it."""

from __future__ import annotations

import base64
import json
from typing import Any

from typing_extensions import override

from ts.torch_handler.request_envelope.base import BaseEnvelope, sent_in


class JSONEnvelope(BaseEnvelope):
    """Gives the handler the instances of all requests; returns `{"predictions": [...]}` as text.

    A value `{"b64": text}` becomes bytes.
    """

    @override
    def parse_input(self, data: Any) -> Any:
        requests = [(sent_in(row) or row)["instances"] for row in data]
        self._counts = [len(instances) for instances in requests]
        return [_decoded(one) for instances in requests for one in instances]

    @override
    def format_output(self, data: Any) -> Any:
        answers, begin = [], 0
        for count in self._counts:
            answers.append(json.dumps({"predictions": data[begin : begin + count]}))
            begin += count
        return answers


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if list(value) == ["b64"]:
        return base64.b64decode(value["b64"])
    return {name: _member(one) for name, one in value.items()}


def _member(value: Any) -> Any:
    is_bytes = isinstance(value, dict) and list(value) == ["b64"]
    return base64.b64decode(value["b64"]) if is_bytes else value
