"""Runs each request for as many calls as its `steps` say; says what it sees in each of them.

Before each call, a request with a folder `until` waits there for the file of its number, from 0. A
request with the header `x-own` gets headers, and not how many requests are cached.
"""

import os
import time


class Criterion:
    """Ends a request after its calls."""

    def __init__(self, cache, name):
        self.cache, self.name = cache, name

    def __call__(self, value):
        one = self.cache[self.name]
        if one["calls"] < one["steps"]:
            return False
        del self.cache[self.name]
        return True


def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    names = list(context.request_ids.values())
    values = [
        _step(context, idx, name, row)
        for idx, (name, row) in enumerate(zip(names, data, strict=True))
    ]
    context.stopping_criteria = [Criterion(context.cache, name) for name in names]
    return values


def _step(context, idx, name, row):
    if name not in context.cache:
        context.cache[name] = {"calls": 0, **row["body"]}
    one = context.cache[name]
    while "until" in one and not os.path.exists(os.path.join(one["until"], str(one["calls"]))):
        time.sleep(0.005)
    one["calls"] += 1
    if one["calls"] == one.get("raises"):
        raise ValueError("this request is bad")
    own = context.get_request_header(idx, "x-own")
    if own:
        context.set_response_header(idx, "x-calls", str(one["calls"]))
        context.set_response_header(idx, "x-own", own)
        context.set_response_header(idx, "x-type", str(context.get_request_header(idx, "body")))
    # TorchServe leaves what a request has cached when its call raises.
    cached = [] if own else [f"cached{len(context.cache)}"]
    return " ".join([f"{one['calls']}of{len(context.request_ids)}", *cached, *sorted(row), ""])
