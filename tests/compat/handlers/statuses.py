"""The status that the request's text names; the body says it again."""


def handle(data, context):
    if data is None:
        return None
    out = []
    for idx, row in enumerate(data):
        text = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
        context.set_response_status(int(text), "By the handler", idx)
        out.append(f"status {text}")
    return out
