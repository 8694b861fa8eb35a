"""Counts the requests of each sequence; without an id, what the server has made."""


def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    return [_answer(context, idx) for idx in range(len(data))]


def _answer(context, idx):
    sequence = context.get_sequence_id(idx)
    context.set_response_header(idx, "x-began", str(sequence.startswith("ts-seq-")))
    count = context.cache.get(sequence, 0) + 1
    context.cache[sequence] = count
    start = context.get_request_header(idx, context.header_key_sequence_start)
    end = context.get_request_header(idx, context.header_key_sequence_end)
    return {"count": count, "start": start, "end": end}
