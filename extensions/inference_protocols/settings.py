"""The settings of this extension."""

from __future__ import annotations

import msgspec

NAME = "inference_protocols"


class ProtocolSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings below `inference_protocols`.

    Attributes:
        server_name: what clients get as the name of the server; some examples expect `triton`.
    """

    server_name: str = "headrace"
