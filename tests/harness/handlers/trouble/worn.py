"""A handler whose life goes wrong as its options say.

`load`: hang (in C, with the GIL held) or block (in Python). `warm`: its example. `room`: how many
items fit into memory, as a number or a file with it. `grow_mib`: how much more each batch takes.
`load_gate`: all processes but the first wait for that file. The input
`{"do": "child", "pid": file, "session": bool}` starts a child and sleeps in C with the GIL held.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from headrace.handler import Context, Handler

POLL_S = 0.01


def sleep_with_the_gil_held() -> None:
    ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL


class Worn(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.options = context.options
        self.kept: list[bytearray] = []
        if self.options.get("load") == "hang":
            sleep_with_the_gil_held()
        if self.options.get("load") == "block":
            threading.Event().wait()
        gate = self.options.get("load_gate")
        if gate:
            with open(f"{gate}.log", "a") as log:
                log.write(f"{os.getpid()}\n")
            # The first process loads at once.
            while len(Path(f"{gate}.log").read_text().split()) > 1 and not Path(gate).exists():
                time.sleep(POLL_S)

    def example_input(self) -> Any:
        return self.options.get("warm")

    def inference(self, items: list[Any]) -> list[Any]:
        room = self.options.get("room", 1000)
        if isinstance(room, str):
            room = int(Path(room).read_text())
        if len(items) > room:
            raise MemoryError(f"room for {room}, not for {len(items)}")
        grow = self.options.get("grow_mib")
        if grow:
            self.kept.append(bytearray(os.urandom(1024) * 1024 * grow))
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Any:
        if item == "fail":
            raise ValueError("these weights give nothing")
        if isinstance(item, dict) and item.get("do") == "child":
            child = subprocess.Popen(
                [sys.executable, "-c", "import time; time.sleep(600)"],
                start_new_session=item["session"],
            )
            Path(item["pid"]).write_text(f"{child.pid} {os.getpid()}")
            sleep_with_the_gil_held()
        if isinstance(item, dict) and "until" in item:
            while not Path(item["until"]).exists():
                time.sleep(POLL_S)
        return os.getpid()
