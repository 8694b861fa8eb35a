"""Runs each request for as many calls as it asks for; says what it sees in each of them."""


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
    return [
        _step(context, idx, name, row)
        for idx, (name, row) in enumerate(zip(names, data, strict=True))
    ]


def _step(context, idx, name, row):
    if name not in context.cache:
        context.cache[name] = {"calls": 0, **row["body"]}
    one = context.cache[name]
    one["calls"] += 1
    context.set_response_header(idx, "x-calls", str(one["calls"]))
    if one["calls"] == one.get("raises"):
        raise ValueError("this request is bad")
    context.stopping_criteria = [Criterion(context.cache, n) for n in context.request_ids.values()]
    own = context.get_request_header(idx, "x-own")
    kind = context.get_request_header(idx, "body")
    return {"call": one["calls"], "members": sorted(row), "own": own, "type": kind}
