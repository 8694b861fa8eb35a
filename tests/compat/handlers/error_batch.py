"""A handler that sets a status for each request."""


def handle(data, context):
    if data is None:
        return None
    for idx, _ in enumerate(data):
        context.set_response_status(507, "Insufficient", idx)
    return ["Invalid response"] * len(data)
