"""A handler that waits until there is the file which its requests name, and returns its batch."""

import time
from pathlib import Path


def handle(data, context):
    if data is None:
        return None
    gate = Path(bytes(data[0]["body"]).decode())
    gate.with_suffix(".begun").touch()
    for _ in range(60_000):
        if gate.exists():
            break
        time.sleep(0.01)
    return [str(len(data))] * len(data)
