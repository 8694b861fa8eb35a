"""Models for the tests of containers. They need no torch, so that a limit of memory is theirs."""

from __future__ import annotations

from typing import Any

GIB = 1024**3

MODELS: dict[str, Any] = {
    "echo": {"handler": "echo"},
    "slow": {"handler": "{folder}/slow.py", "max_batch_size": 8},
    "hog": {"handler": "{folder}/hog.py", "max_batch_size": 1},
}
#: The background worker runs them.
PIPELINES = {"twice": {"stages": {"a": {"model": "echo"}, "b": {"model": "echo", "from": "a"}}}}
HANDLERS = {
    "slow.py": """
import time
from headrace import Handler

class Slow(Handler):
    def inference(self, items):
        time.sleep(0.2)
        return items
""",
    # It takes as much memory as its input says.
    "hog.py": """
from headrace import Handler

class Hog(Handler):
    def inference(self, items):
        return [len(b"x" * item["bytes"]) for item in items]
""",
}


def models(folder: str) -> dict[str, Any]:
    """The models, with the handlers in a folder."""
    return {
        name: {**model, "handler": model["handler"].format(folder=folder)}
        for name, model in MODELS.items()
    }
