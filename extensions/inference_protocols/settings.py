"""The settings of this extension."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

NAME: Final = "inference_protocols"


class ProtocolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings below `inference_protocols`.

    Attributes:
        server_name: what clients get as the name of the server; some examples expect `triton`.
        grpc_port: where each API process serves gRPC; 0 for no gRPC. Triton's clients expect 8001,
            TensorFlow Serving's 8500.
        answered_ttl_s: how long the job of a request is kept that was answered with its result.
    """

    server_name: str = "headrace"
    grpc_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    answered_ttl_s: Annotated[int, Meta(ge=1, le=2_592_000)] = 60
