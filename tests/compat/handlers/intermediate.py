"""A handler that sends pieces before its last one."""

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if isinstance(data, list):
        for piece in range(2):
            send_intermediate_predict_response(
                [f"piece {piece} "] * len(data),
                context.request_ids,
                "Intermediate Prediction success",
                200,
                context,
            )
        return ["the end"] * len(data)
    return None
