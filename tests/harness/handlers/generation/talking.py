"""A handler that logs and prints, and that fails in the way that an input asks for.

An input is an object. `do` is one of `talk`, `raise`, `bad`, `crash`, `hang` and `answer`. What
else it holds must never be seen outside of the job.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

from headrace.errors import InputError
from headrace.handler import Handler

logger = logging.getLogger(__name__)


class Talking(Handler):
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [InputError(f"this is bad: {one}") if one["do"] == "bad" else one for one in inputs]

    def inference(self, items: list[Any]) -> list[Any]:
        for one in items:
            self._do(one)
        return items

    def _do(self, one: dict[str, Any]) -> None:
        match one["do"]:
            case "talk":
                logger.info("talked\nin two lines", extra={"mood": "good"})
                logger.debug("whispered")
                print("printed")  # noqa: T201 - that is what is tested
            case "raise":
                raise ValueError(f"raised over {one}")
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                threading.Event().wait()

    def postprocess(self, outputs: list[Any]) -> list[Any]:
        return [one.get("answer") for one in outputs]


class InThreads(Talking):
    """The same, with each verb in a thread of its own."""

    overlap = True

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        logger.info("prepared")
        return super().preprocess(inputs)

    def postprocess(self, outputs: list[Any]) -> list[Any]:
        logger.info("finished")
        return super().postprocess(outputs)
