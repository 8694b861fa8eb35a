"""The exception by which a handler answers with a status of its own."""

from ts.utils.util import PredictionException

__all__ = ["PredictionException"]
