"""Models for pipelines: `Cut` makes pieces, `Weigh` looks at one, each as told by its input.

What has run is noted in a file, so that a test can see what was run again; a gate holds runs back.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Any

from headrace import Handler, Response
from headrace.errors import InputError, TransientError
from headrace.handler import Context


class _Noting(Handler):
    def initialize(self, context: Context) -> None:
        self._name = context.model_name
        self._log = Path(str(context.options["log"]))
        self._gate = Path(str(context.options["gate"]))

    def _note(self, what: object) -> None:
        with self._log.open("a") as log:
            log.write(f"{self._name} {what}\n")

    def _wait(self) -> None:
        while self._gate.exists():
            time.sleep(0.01)


class Cut(_Noting):
    """{"pieces": n, "size": s} -> {"pieces": n pieces of s bytes}, as an image's crops are."""

    def inference(self, items: list[Any]) -> list[Any]:
        self._note(os.getpid())
        self._wait()
        return [
            {
                "count": item["pieces"],
                "pieces": [
                    {
                        "content_type": "application/octet-stream",
                        "base64": base64.b64encode(bytes([n % 256]) * item["size"]).decode(),
                    }
                    for n in range(item["pieces"])
                ],
            }
            for item in items
        ]


class Weigh(_Noting):
    """Bytes -> {"first", "bytes"}; JSON -> itself and its length. Bytes that begin with 13 fail."""

    def inference(self, items: list[Any]) -> list[Any]:
        given = [item if not isinstance(item, bytes) else (item[0], len(item)) for item in items]
        self._note(len(given))
        self._wait()
        return [self._weighed(item) for item in given]

    @staticmethod
    def _weighed(item: Any) -> Any:
        if isinstance(item, tuple):
            if item[0] == 13:
                return InputError("thirteen is refused")
            return {"first": item[0], "bytes": item[1]}
        if item == "transient":
            return TransientError("not just now")
        if item == "image":
            return Response(b"\x89PNG" + bytes(100_000), "image/png")
        return {"given": item}
