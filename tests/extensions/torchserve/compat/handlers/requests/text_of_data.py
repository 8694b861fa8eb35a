"""Each request as Python writes it: it shows the type of what the handler gets."""


def handle(data, context):
    if data is None:
        return None
    return [str(row) for row in data]
