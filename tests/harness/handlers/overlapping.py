"""A handler whose verbs may overlap, and that logs what it does.

An input is an object. `name` is in the log. `preprocess`, `inference` and `postprocess` each name a
file that the verb waits for. `die` names the verb in which the process dies, `raise` the verb that
raises, and `hang` the verb that never ends. `drops` names the verb that waits until `count` items
of batches in the process were dropped. `tells` names the verb that waits for its file, and says
when an item of the newest batch was dropped. Without `overlap` its verbs run in turn.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.handler import Context, Handler
from workers.model_process.reports.stacks import frames_of_threads

POLL_S = 0.01


def dropped() -> list[int]:
    """How many items of each batch this process has been told to drop, as its reader knows."""
    for frame in frames_of_threads().values():
        at: FrameType | None = frame
        while at is not None and at.f_code.co_name != "_read":
            at = at.f_back
        if at is not None:
            return [len(places) for places in at.f_locals["dropped"].values()]
    raise RuntimeError("no thread reads frames in here")


class InTurn(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.log = Path(context.options["log"])
        self.write = threading.Lock()

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return self.at("preprocess", inputs)

    def inference(self, items: Any) -> Any:
        return self.at("inference", items)

    def postprocess(self, outputs: Any) -> list[Any]:
        return [
            {**item, "seen_as": job_id, "pid": os.getpid()}
            for item, job_id in zip(
                self.at("postprocess", outputs), self.context.request_ids, strict=True
            )
        ]

    def at(self, verb: str, items: list[Any]) -> list[Any]:
        names = ",".join(str(item["name"]) for item in items)
        self.say(f"{verb} {names} begins")
        for item in items:
            tells = item.get("tells") == verb
            while verb in item and not Path(item[verb]).exists():
                if tells and dropped()[-1]:
                    self.say(f"{verb} {names} is dropped")
                    tells = False
                time.sleep(POLL_S)
            while item.get("drops") == verb and sum(dropped()) < item["count"]:
                time.sleep(POLL_S)
            if item.get("die") == verb:
                os._exit(3)
            if item.get("hang") == verb:
                threading.Event().wait()
            if item.get("raise") == verb:
                raise ValueError(f"{verb} of {item['name']}")
        self.say(f"{verb} {names} ends")
        return items

    def say(self, text: str) -> None:
        with self.write, self.log.open("a") as log:
            log.write(f"{text}\n")


class Overlapping(InTurn):
    overlap = True
