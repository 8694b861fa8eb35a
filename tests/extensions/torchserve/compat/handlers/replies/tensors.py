"""For the envelope `kservev2`: it returns what the text of an input names, else its data."""

import numpy

RETURNED = {
    "int": 3,
    "floats": [0.5, 1.5],
    "nested": [[1, 2], [3, 4]],
    "text": "word",
    "texts": ["a", "bc"],
    "mixed": [1, "a"],
    "bool": True,
    "none": None,
    "object": {"a": 1},
    "small": numpy.arange(3, dtype="uint8"),
    "ragged": [[1], [2, 3]],
    "complex": 1j,
}


def handle(data, context):
    if data is None:
        return None
    if data and data[0]["data"] == "names":
        return [[*context.input_names, getattr(context, "input_request_id", "no id")]]
    if data and data[0]["data"] == "too many":
        return [1] * (len(data) + 1)
    if data and data[0]["data"] == "nothing":
        return []
    return [
        RETURNED[row["data"]] if isinstance(row["data"], str) else [row["data"]] for row in data
    ]
