"""Models for pipelines: `Cut` makes pieces, `Weigh` looks at one, each as told by its input.

What has run is noted in a file, so that a test can see what was run again; a gate holds runs back.
"""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Any

from redis import Redis

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


class Grow(_Noting):
    """{"n": n, "size": s} -> the same of n + 1, and s letters. Notes n, and how many results lie
    in the payload store.

    At `held_at` it waits at the gate, with `until` for a file; at `fails_once` it says at first:
    try again.
    """

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self._redis = str(context.options["redis"])
        self._failed: set[str] = set()

    def inference(self, items: list[Any]) -> list[Any]:
        with Redis.from_url(self._redis, socket_timeout=60) as client:
            entries: Any = client.zrange("hr:payloads", 0, -1)
        stored = sum(entry.endswith(b" r") for entry in entries)
        return [self._grown(item, stored) for item in items]

    def _grown(self, item: Any, stored: int) -> Any:
        n = item["n"]
        self._note(f"{n} {stored}")
        if item.get("held_at") == n:
            self._wait()
        while "until" in item and not Path(item["until"]).exists():
            time.sleep(0.01)
        if item.get("fails_once") == n and item["name"] not in self._failed:
            self._failed.add(item["name"])
            return TransientError("not just now")
        return {**item, "n": n + 1, "pad": "x" * item["size"]}


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
