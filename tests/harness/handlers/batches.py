"""A handler that writes down its batches.

Options: `log`, `pause_s` a batch and `item_s` an item, and `gate`, a file to wait for. A line in
the log is JSON: the model, the time, the ids, and the items that `inference` got. Another line
notes that the model's batch has ended.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from headrace.handler import Handler

POLL_S = 0.005


class Batches(Handler):
    def inference(self, items: list[Any]) -> list[Any]:
        options = self.context.options
        self.say(ids=self.context.request_ids, items=items)
        time.sleep(options.get("pause_s", 0) + options.get("item_s", 0) * len(items))
        while "gate" in options and not Path(options["gate"]).exists():
            time.sleep(POLL_S)
        self.say(ended=True)
        return items

    def say(self, **told: Any) -> None:
        said = {"model": self.context.model_name, "at": time.time(), **told}
        line = json.dumps(said, default=repr)
        with open(self.context.options["log"], "a") as log:
            log.write(line + "\n")
