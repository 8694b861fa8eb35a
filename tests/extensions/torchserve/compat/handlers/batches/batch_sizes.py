"""How many requests were in the batch; a request can ask the handler to be slow."""

import time


def handle(data, context):
    if data is None:
        return None
    if any(bytes(row["body"]) == b"slow" for row in data if not isinstance(row["body"], str)):
        time.sleep(0.5)
    return [{"batch": len(data), "row": idx} for idx, _ in enumerate(data)]
