"""A handler that returns one value fewer than it got requests."""


def handle(data, context):
    return None if data is None else ["OK"] * (len(data) - 1)
