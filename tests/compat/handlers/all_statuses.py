"""A handler that sets one status for the whole batch, with a header and a JSON body."""


def handle(data, context):
    if data is None:
        return None
    context.set_all_response_status(code=418, phrase="Teapot")
    for idx, _ in enumerate(data):
        context.set_response_header(idx, "x-kettle", "on")
    return [{"error": "no coffee"}] * len(data)
