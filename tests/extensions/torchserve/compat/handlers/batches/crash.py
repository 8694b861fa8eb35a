"""A handler whose process ends: by itself, or by a signal, as the request says."""

import os
import signal


def handle(data, context):
    if data is None:
        return None
    for row in data:
        text = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
        if text == "exit":
            os._exit(3)
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    return [str(os.getpid()) for _ in data]
