"""A handler that returns what is not a list."""


def handle(data, context):
    return None if data is None else {"answer": 42}
