"""The base class of handlers that use DeepSpeed."""

from __future__ import annotations

import os
from typing import Any

from typing_extensions import override

from ts.torch_handler.base_handler import BaseHandler


class BaseDeepSpeedHandler(BaseHandler):
    """Chooses the device; a class of its own loads the model, and calls `get_ds_engine`."""

    @override
    def initialize(self, context: Any) -> None:
        """Set `device` to the number of the process on its host: 0, as there is one."""
        self.device = int(os.environ.get("LOCAL_RANK", "0"))
