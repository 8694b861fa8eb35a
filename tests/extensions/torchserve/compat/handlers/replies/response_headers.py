"""A handler that sets a content type and a header: for `json`, the type of a text that is none."""


def handle(data, context):
    if data is None:
        return None
    return [_answer(context, idx, bytes(row["body"])) for idx, row in enumerate(data)]


def _answer(context, idx, text):
    if text == b"json":
        context.set_response_content_type(idx, "application/json; charset=utf-8")
        return '{"a":1}'
    context.set_response_content_type(idx, "text/plain")
    context.set_response_header(idx, "dummy", "1")
    return "OK"
