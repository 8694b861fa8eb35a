"""An older place of `send_intermediate_predict_response`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ts.handler_utils import utils
from ts.utils.util import deprecated


@deprecated(
    version="1.0.0",
    replacement="ts.handler_utils.utils.send_intermediate_predict_response",
)
def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str], message: str, code: int, context: Any = None
) -> None:
    """Send a piece of the reply to each request."""
    utils.send_intermediate_predict_response(ret, req_id_map, message, code, context)
