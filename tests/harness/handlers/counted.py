"""The included language model, which writes into a file when cancels come and jobs end.

The file is `cancels.jsonl` beside the handler. Each line is JSON. It has a batch's number; "is",
"came" or "ended"; and how many steps the model had run by then. The last value is a job's id, or
the ids of the requests that have memory. A cancel has come when the thread that reads frames has
noted it, and reads the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from handlers.generation.continuous import ContinuousEngine
from handlers.language_model import LanguageModel
from headrace.handler import Context
from workers.protocol.frames import Done, Drop, FrameSocket, RunBatch

CANCELS = Path(__file__).with_name("cancels.jsonl")


class Counted(LanguageModel):
    @override
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.steps = 0
        receive, send = FrameSocket.receive, FrameSocket.send
        drops: list[int] = []

        def received(frames: FrameSocket[Any, Any]) -> list[Any]:
            while drops:
                self._write(drops.pop(), "came")
            found = receive(frames)
            for frame in found:
                if isinstance(frame, RunBatch):
                    self._write(frame.seq, "is", frame.rows[0][0])
                elif isinstance(frame, Drop):
                    drops.append(frame.seq)
            return found

        def sent(frames: FrameSocket[Any, Any], frame: Any) -> None:
            if isinstance(frame, Done):
                assert isinstance(self.engine, ContinuousEngine)
                caches = self.engine._batches.cache.cache_allocators.values()
                self._write(
                    frame.seq, "ended", *(name for one in caches for name in one.block_table)
                )
            send(frames, frame)

        FrameSocket.receive = received  # type: ignore[assignment, method-assign]
        FrameSocket.send = sent  # type: ignore[assignment, method-assign]

    def _write(self, seq: int, what: str, *names: str) -> None:
        line = msgspec.json.encode([seq, what, self.steps, *names]) + b"\n"
        with open(CANCELS, "ab", buffering=0) as file:
            file.write(line)

    @override
    def step(self) -> Any:
        pieces = super().step()
        self.steps += 1
        return pieces
