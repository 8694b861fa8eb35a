"""Sends the pieces that a request asks for, and returns the last one."""

from ts.handler_utils.utils import send_intermediate_predict_response

BYTES = b"\x00\xff"


def handle(data, context):
    if data is None:
        return None
    asked = [row["body"] for row in data]
    for idx, one in enumerate(asked):
        for name, value in one.get("headers", {}).items():
            context.set_response_header(idx, name, value)
        if "status" in one:
            context.set_response_status(one["status"], "Chosen", idx)
    count = max(len(one["pieces"]) for one in asked)
    for n in range(count):
        pieces = [BYTES if one["pieces"][n] == "bytes" else one["pieces"][n] for one in asked]
        if "raise" in pieces:
            raise ValueError("this request is bad")
        if n == count - 1:
            return pieces
        send_intermediate_predict_response(
            pieces, context.request_ids, "Intermediate Prediction success", 200, context
        )
    return asked
