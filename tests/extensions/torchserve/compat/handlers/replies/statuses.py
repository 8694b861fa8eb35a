"""The status that the request's text names; the body says it again. `all` sets all of a batch."""


def handle(data, context):
    if data is None:
        return None
    out = []
    for idx, row in enumerate(data):
        text = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
        if text == "all":
            context.set_all_response_status(code=418, phrase="Teapot")
            context.set_response_header(idx, "x-kettle", "on")
            out.append({"error": "no coffee"})
        else:
            context.set_response_status(int(text), "By the handler", idx)
            out.append(f"status {text}")
    return out
