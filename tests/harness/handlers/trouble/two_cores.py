"""A handler that has used two cores of OpenVINO while it loaded, and whose inference hangs."""

from __future__ import annotations

import threading
from typing import Any

from headrace.handler import Context, Handler


class TwoCores(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        from openvino import Core

        cores = [Core(), Core()]
        for core in cores:
            core.get_property("CPU", "FULL_DEVICE_NAME")
        # The second restores the signal stack of the first, which is freed by then.
        del cores[0]
        del cores[0]

    def inference(self, items: list[Any]) -> list[Any]:
        threading.Event().wait()
        return items
