"""Some headers of each request, looked up in other cases than the client's."""


def handle(data, context):
    if data is None:
        return None
    return [
        {
            "x-one": context.get_request_header(idx, "x-one"),
            "missing": context.get_request_header(idx, "x-missing"),
            "explain": context.get_request_header(idx, "explain"),
            "type": context.get_request_header(idx, "body"),
        }
        for idx, _ in enumerate(data)
    ]
