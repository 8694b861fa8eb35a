"""A handler that sets the content type of JSON on a text that is not JSON."""


def handle(data, context):
    if data is None:
        return None
    for idx, _ in enumerate(data):
        context.set_response_content_type(idx, "application/json; charset=utf-8")
    return ['{"a":1}'] * len(data)
