"""A handler that waits for the file that its requests name, and returns how many they are.

A request whose second line says so fails with its batch.
"""

import time
from pathlib import Path


def handle(data, context):
    if data is None:
        return None
    lines = [bytes(row["body"]).decode().splitlines() for row in data]
    gate = Path(lines[0][0])
    gate.with_suffix(".begun").touch()
    for _ in range(60_000):
        if gate.exists():
            break
        time.sleep(0.01)
    if any(more == ["bad"] for _, *more in lines):
        raise ValueError("the input is bad")
    return [str(len(data))] * len(data)
