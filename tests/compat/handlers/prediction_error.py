"""A handler that raises TorchServe's exception with a code, as a service imports it."""

from ts.service import PredictionException


def handle(data, context):
    if data:
        raise PredictionException("Some Prediction Error", 599)
