"""A handler that sleeps as many seconds as the largest request of the batch says."""

import time


def handle(data, context):
    if data is None:
        return None
    time.sleep(max(float(row["body"]) for row in data))
    return ["slept"] * len(data)
