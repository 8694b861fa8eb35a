"""The base class of handlers that use PiPPy: it fails at the load."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from typing_extensions import override

from ts.handler_utils.distributed.pt_pippy import initialize_rpc_workers
from ts.torch_handler.base_handler import BaseHandler


class BasePippyHandler(BaseHandler):
    """Fails at the load, as a model process is one process."""

    @override
    def initialize(self, context: Any) -> NoReturn:
        initialize_rpc_workers(
            int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), context
        )
