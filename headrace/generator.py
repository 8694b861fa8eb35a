"""The base class of handlers that run requests in a continuous batch: language models, mostly.

A request joins the batch while others run in it, and leaves it when it ends. The model process
calls the methods in this order, in one thread::

    initialize(context)                 once
    preprocess([input]) -> [request]    for each input, alone
    budget(), cost(request)             while requests wait: is there room for the next one?
    add(id, request)                    the request joins
    step() -> pieces                    again and again, while requests run
    cancel(id)                          a request whose job was cancelled leaves

A request whose `preprocess` or `add` raises fails alone, and so does one that gets a piece with an
`error`. If `step` raises, the state of the batch is unknown: the process ends, and the jobs run
again (docs/architecture/generation.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator as Steps
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from headrace.errors import HandlerError, InputError
from headrace.handler import Handler


@dataclass(frozen=True, slots=True)
class Budget:
    """The room for more requests.

    Attributes:
        slots: how many more may join.
        tokens: how much they may cost together; see `Generator.cost`.
    """

    slots: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step did for one request.

    Attributes:
        id: the request.
        delta: the new part of its result, text or JSON; None for nothing new.
        tokens: the tokens from which `delta` was made, so that the request can go on after them in
            another process; see `Generator.add`. Without any, it begins again there.
        finish: why it has ended, such as "stop" or "length"; None while it runs on.
        usage: what it took, such as `{"prompt_tokens": 7, "completion_tokens": 16}`; the one that
            comes with `finish` counts.
        error: it has ended with this error.
    """

    id: str
    delta: Any = None
    tokens: Sequence[int] = ()
    finish: str | None = None
    usage: dict[str, int] | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Generated:
    """The output of one request; without a `postprocess`, also the result of its job.

    Attributes:
        text: its deltas, joined: one text if all of them are text, else a list.
        finish_reason: the `finish` of its last piece.
        usage: that of its last piece.
    """

    text: Any
    finish_reason: str
    usage: dict[str, int] = field(default_factory=dict)


def joined(deltas: Sequence[Any]) -> Any:
    """Return what these pieces are together: one text if all of them are text, else a list."""
    return "".join(deltas) if all(isinstance(one, str) for one in deltas) else list(deltas)


class Generator(Handler):
    """Base class of handlers with a continuous batch."""

    @abstractmethod
    def budget(self) -> Budget:
        """Return the room for more requests now."""

    def cost(self, request: Any) -> int:
        """Return what a request takes of the budget's tokens until it ends."""
        return 1

    @abstractmethod
    def add(self, request_id: str, request: Any, resume_from: Sequence[int] = ()) -> None:
        """Let a request join, for which there is room.

        Args:
            request_id: names it in the pieces.
            request: what `preprocess` returned for its input.
            resume_from: the tokens of all its pieces, if it has run in another process before. The
                next piece has what follows them, and usage counts them.

        Raises:
            Exception: the request fails with it, alone.
        """

    @abstractmethod
    def step(self) -> Iterable[Piece]:
        """Run the batch one step further, and return what it did.

        A request has ended after a piece with `finish` or `error`. A piece of a request that does
        not run is ignored.
        """

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Let a request leave, and free what it holds."""

    @override
    def inference(self, items: Any) -> Steps[list[Any], None, list[Any]]:
        """Run items as one batch, without a worker: for the warm-up, `headrace try` and tests.

        Yields the pieces of each step, and returns a Generated, or an error, for each item.
        """
        waiting = deque(enumerate(items))
        running: dict[str, int] = {}
        deltas: list[list[Any]] = [[] for _ in items]
        outputs: list[Any] = [None] * len(items)
        while waiting or running:
            while waiting and (room := room_for(self, waiting[0][1], bool(running))) is not False:
                place, request = waiting.popleft()
                if isinstance(room, InputError):
                    outputs[place] = room
                    continue
                try:
                    self.add(str(place), request)
                except Exception as error:  # noqa: BLE001 - the item fails with it, as in a worker
                    outputs[place] = error
                else:
                    running[str(place)] = place
            pieces: list[Any] = [None] * len(items)
            for piece in self.step() if running else ():
                place = running.get(piece.id, -1)
                if place < 0:
                    continue
                if piece.delta is not None:
                    deltas[place].append(piece.delta)
                    new = pieces[place]
                    pieces[place] = piece.delta if new is None else joined([new, piece.delta])
                if piece.error is not None or piece.finish is not None:
                    del running[piece.id]
                    outputs[place] = piece.error or generated(deltas[place], piece)
            yield pieces
        return outputs


def generated(deltas: Sequence[Any], last: Piece) -> Generated:
    """Return the output of a request that ended with this piece."""
    return Generated(joined(deltas), last.finish or "", dict(last.usage or {}))


def room_for(generator: Generator, request: Any, running: bool) -> bool | InputError:
    """Return whether a request may join now; an error if it never could.

    Args:
        generator: the handler.
        request: what its `preprocess` returned.
        running: others run, and will leave room.
    """
    budget, cost = generator.budget(), generator.cost(request)
    if not isinstance(budget, Budget):
        raise HandlerError(f"budget returned {type(budget).__name__}, not a Budget")
    if budget.slots > 0 and cost <= budget.tokens:
        return True
    if running:
        return False
    return InputError(
        f"the request needs {cost:,} tokens of the model's memory, which has {budget.tokens:,}; "
        "make the prompt shorter, or ask for fewer new tokens"
    )
