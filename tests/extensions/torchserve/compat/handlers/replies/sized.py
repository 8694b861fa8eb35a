"""A response of as many bytes as the request's text says."""


def handle(data, context):
    if data is None:
        return None
    return [b"x" * int(row["body"]) for row in data]
