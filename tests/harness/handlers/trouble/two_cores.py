"""A handler that has used two cores of OpenVINO while it loaded, and whose inference hangs."""

from __future__ import annotations

import threading
from typing import Any

from headrace.handler import Context, Handler


def use_two_cores() -> None:
    """Leave this thread the signal stack of the first core, which is freed."""
    from openvino import Core

    cores = [Core(), Core()]
    for core in cores:
        core.get_property("CPU", "FULL_DEVICE_NAME")
    # At its end the second core restores the stack that it found.
    del cores[0]
    del cores[0]


class TwoCores(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        use_two_cores()

    def inference(self, items: list[Any]) -> list[Any]:
        threading.Event().wait()
        return items
