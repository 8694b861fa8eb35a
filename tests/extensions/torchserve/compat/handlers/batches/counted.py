"""Counts the requests of each sequence; without an id, what the server has made.

A request with the text `end` ends its sequence. One with a path waits for this file.
"""

import time
from pathlib import Path


def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    return [_answer(context, idx, bytes(row["body"]).decode()) for idx, row in enumerate(data)]


def _answer(context, idx, text):
    sequence = context.get_sequence_id(idx) or "none"
    if text == "end":
        context.set_response_header(idx, context.header_key_sequence_end, sequence)
    if text.startswith("/"):
        _wait_for(Path(text))
    context.set_response_header(idx, "x-began", str(sequence.startswith("ts-seq-")))
    count = context.cache.get(sequence, 0) + 1
    context.cache[sequence] = count
    start = context.get_request_header(idx, context.header_key_sequence_start)
    end = context.get_request_header(idx, context.header_key_sequence_end)
    return {"count": count, "start": start, "end": end}


def _wait_for(gate):
    gate.with_suffix(".begun").touch()
    for _ in range(60_000):
        if gate.exists():
            return
        time.sleep(0.01)
