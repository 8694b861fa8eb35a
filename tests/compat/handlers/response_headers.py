"""A handler that sets a content type and a header."""


def handle(data, context):
    if data is None:
        return None
    for idx, _ in enumerate(data):
        context.set_response_content_type(idx, "text/plain")
        context.set_response_header(idx, "dummy", "1")
    return ["OK"] * len(data)
