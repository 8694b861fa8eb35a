"""What this extension adds."""

from __future__ import annotations

from typing import Any, Final

from headrace.config.extensions import Extension


def _predict() -> Any:
    from extensions.ray.predict import predict

    return predict


def _submit() -> Any:
    from extensions.ray.submit import submit

    return submit


def _predictor() -> Any:
    from extensions.ray.predict import Predictor

    return Predictor


def _queue_sender() -> Any:
    from extensions.ray.submit import QueueSender

    return QueueSender


EXTENSION: Final = Extension(
    name="ray",
    summary="Ray Data: datasets through a model, in Ray's actors or through the queue",
    exports={
        "headrace.ray.predict": _predict,
        "headrace.ray.submit": _submit,
        "headrace.ray.Predictor": _predictor,
        "headrace.ray.QueueSender": _queue_sender,
    },
)
