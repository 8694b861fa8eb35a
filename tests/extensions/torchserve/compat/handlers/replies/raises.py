"""A handler that raises what the request's text names."""

from ts.service import PredictionException
from ts.utils.util import PredictionException as SamePredictionException


def handle(data, context):
    if data is None:
        return None
    for row in data:
        text = row["body"] if isinstance(row["body"], str) else bytes(row["body"]).decode()
        if text == "cuda":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if text == "memory":
            raise MemoryError("no memory is left")
        if text == "prediction":
            raise PredictionException("Some Prediction Error", 599)
        if text == "prediction without code":
            raise SamePredictionException("Some Prediction Error")
        if text == "key":
            raise KeyError("label")
        if text == "bad":
            raise ValueError("the input is bad")
    return ["OK"] * len(data)
