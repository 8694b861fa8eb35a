"""A handler for an envelope: it gets the values themselves."""


def handle(data, context):
    if data is None:
        return None
    return [
        {"row": row if isinstance(row, str | int | list) else bytes(row).decode()} for row in data
    ]
