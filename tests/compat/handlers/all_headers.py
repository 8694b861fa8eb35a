"""The names of all headers of a request, in lower case and in order."""


def handle(data, context):
    if data is None:
        return None
    return [
        sorted(name.lower() for name in context.get_all_request_header(idx))
        for idx, _ in enumerate(data)
    ]
