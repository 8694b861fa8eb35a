"""A generator without a model: each request gets numbered words, at the pace of the test.

An input is an object: `words` is how many words it gets. `until` is a folder: the request gets its
n-th word once there is a file of that number in it. `finish` replaces "stop". `refuses` raises in
`add`. `fails` is the number of the word that is an error instead. `raises` is the word at which
`step` raises. `kills` is the word at which the process kills itself, once with a folder `until`.
`hangs` is the word at which `step` does not return, once with a folder `until`. `cost` is the most
that it takes of the 100 tokens, and `likely` what it probably takes. With the option `grows` it
takes a token for each word, and with `step_s` each step takes so long. A request that `forgets` has
no tokens to go on from. `pad` letters follow each word, and `count` is a file that gets the number
of words so far.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import Budget, Context, Generator, Piece
from headrace.errors import InputError
from tests.harness.handlers.generation.speaking import POLL_S

#: For how many tokens there is memory.
MEMORY = 100


class Words(Generator):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.slots = int(context.options.get("slots", 4))
        self.grows = bool(context.options.get("grows"))
        self.step_s = float(context.options.get("step_s", 0))
        self.running: dict[str, tuple[Any, int]] = {}

    def example_input(self) -> Any:
        return {"words": 2}

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [
            InputError("give words") if not isinstance(one, dict) or "words" not in one else one
            for one in inputs
        ]

    def budget(self) -> Budget:
        taken = sum(self.likely_cost(request, n) for request, n in self.running.values())
        return Budget(self.slots - len(self.running), MEMORY - taken)

    def cost(self, request: Any) -> int:
        return int(request.get("cost", 1))

    def likely_cost(self, request: Any, produced: int = 0) -> int:
        if not self.grows:
            return self.cost(request)
        return max(int(request.get("likely", self.cost(request))), produced + 1)

    def lacks_memory(self) -> bool:
        return self.grows and sum(n + 1 for _, n in self.running.values()) > MEMORY

    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        if request.get("refuses"):
            raise InputError("refused")
        if list(resume_from) != list(range(len(resume_from))):
            raise InputError(f"resumed from {resume_from}")
        self.running[request_id] = (request, len(resume_from))

    def step(self) -> list[Piece]:
        if self.lacks_memory():
            raise MemoryError("the requests need more than there is")
        time.sleep(self.step_s)
        pieces = [self.advance(request_id, *one) for request_id, one in list(self.running.items())]
        if all(piece == Piece(piece.id) for piece in pieces):
            time.sleep(POLL_S)
        return pieces

    def advance(self, request_id: str, request: Any, n: int) -> Piece:
        if "until" in request and not Path(request["until"], str(n)).exists():
            return Piece(request_id)
        if request.get("raises") == n:
            raise ValueError("step raised")
        if request.get("kills") == n and not Path(request["until"], "killed").exists():
            Path(request["until"], "killed").touch()
            os.kill(os.getpid(), signal.SIGSEGV)
        if request.get("hangs") == n and not Path(request["until"], "hung").exists():
            Path(request["until"], "hung").touch()
            signal.pause()
        if request.get("fails") == n:
            del self.running[request_id]
            return Piece(request_id, error=InputError("failed in the middle"))
        n += 1
        if "count" in request:
            Path(request["count"]).write_text(str(n))
        done = n >= request["words"]
        if done:
            del self.running[request_id]
        else:
            self.running[request_id] = (request, n)
        return Piece(
            request_id,
            f"w{n - 1} " + "x" * request.get("pad", 0),
            () if request.get("forgets") else (n - 1,),
            finish=request.get("finish", "stop") if done else None,
            usage={"completion_tokens": n, "beside": len(self.running) + done, "pid": os.getpid()}
            if done
            else None,
        )

    def cancel(self, request_id: str) -> dict[str, int] | None:
        found = self.running.pop(request_id, None)
        return None if found is None else {"completion_tokens": found[1]}
