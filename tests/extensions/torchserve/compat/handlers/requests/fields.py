"""Each field of a request: its type and its value as text."""


def shown(value):
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    return value


def handle(data, context):
    if data is None:
        return None
    return [
        {name: [type(value).__name__, shown(value)] for name, value in row.items()} for row in data
    ]
