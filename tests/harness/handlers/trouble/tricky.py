"""Handlers that misbehave on request: each input says what to do.

`{"do": …}` is raise, transient, sleep, hang, child, exit, segfault, or ascii, which returns
`ascii(value)`. transient fails as long as there is no file `until`. sleep takes `s` seconds. hang
holds the GIL. child waits for a child in a session of its own, whose pid it writes to the file
`pid`. Every other input is returned. Where `log` is an option, each run of an input is a line
there. A batch takes `pause_s`, and `item_s` more for each input.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headrace.errors import TransientError
from headrace.handler import Context, Handler


def wait_for_a_child(told: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as child:
        told.write_text(str(child.pid))
        child.wait()


class Tricky(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        if context.options.get("load") == "fail":
            raise RuntimeError("these weights are for another model")
        self.log = context.options.get("log")
        self.pause_s = float(context.options.get("pause_s", 0))
        self.item_s = float(context.options.get("item_s", 0))

    def inference(self, items: list[Any]) -> list[Any]:
        if self.log:
            with open(self.log, "a") as log:
                log.writelines(
                    f"{job_id} {len(items)} {os.getpid()}\n" for job_id in self.context.request_ids
                )
        time.sleep(self.pause_s + self.item_s * len(items))
        return [self.one(item) for item in items]

    def one(self, item: Any) -> Any:
        do = item.get("do") if isinstance(item, dict) else None
        if do == "raise":
            raise ValueError(f"cannot do {item.get('n')}")
        if do == "transient" and not Path(item.get("until", "/nowhere")).exists():
            raise TransientError("try again")
        if do == "sleep":
            time.sleep(item["s"])
        if do == "hang":
            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL
        if do == "child":
            wait_for_a_child(Path(item["pid"]))
        if do == "exit":
            os._exit(3)
        if do == "ascii":
            return ascii(item["value"])
        if do == "segfault":
            ctypes.string_at(0)
        return item
