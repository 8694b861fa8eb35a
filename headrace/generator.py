"""The base class of handlers that run requests in a continuous batch: language models, mostly.

A request joins the batch while others run in it, and leaves it when it ends. The model process
calls the methods in this order, in one thread::

    initialize(context)                 once
    preprocess([input]) -> [request]    for each input, alone
    preparation(request)                what another thread does before it joins
    budget(), cost(request)             while requests wait: is there room for the next one?
    add(id, request)                    the request joins
    step() -> pieces                    again and again, while requests run
    cancel(id)                          a request leaves: its job was cancelled, or it is put back

An offline request is put back when an online one needs its place, and the newest request when the
memory runs out (`lacks_memory`). It is added again later, with its tokens.

A request whose `preprocess` or `add` raises fails alone, and so does one that gets a piece with an
`error`. If `step` raises, the state of the batch is unknown: the process ends, and the jobs run
again (docs/architecture/generation.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator as Steps
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from headrace.errors import HandlerError, InputError
from headrace.handler import Handler


@dataclass(frozen=True, slots=True)
class Budget:
    """The room for more requests.

    Attributes:
        slots: how many more may join.
        tokens: how much they may cost together; see `Generator.likely_cost`. While nothing runs,
            the most that one request may cost; see `Generator.cost`.
    """

    slots: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What a step did for one request.

    Attributes:
        delta: the new part of its result, text or JSON; None for nothing new.
        tokens: the tokens from which `delta` was made, so that the request can go on after them in
            another process; see `Generator.add`. Without any, it begins again there.
        finish: why it has ended, such as "stop" or "length"; None while it runs on.
        usage: what it took, such as `{"prompt_tokens": 7, "completion_tokens": 16}`; the one that
            comes with `finish` or `error` counts. `cached_tokens` are those of the prompt that a
            cache had.
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
        """Return the most that a request takes of the budget's tokens until it ends."""
        return 1

    def preparation(self, request: Any) -> Future[Any] | None:
        """Return what another thread does for a request before it joins; None for nothing.

        It is for work of the handler that takes long: the others go on meanwhile. If it raises,
        the request fails with that, alone.
        """
        return None

    def likely_cost(self, request: Any, produced: int = 0) -> int:
        """Return what a request probably takes of the budget's tokens until it ends.

        If this can be less than `cost`, the memory can run out: see `lacks_memory`.

        Args:
            request: what `preprocess` returned for its input.
            produced: how many tokens its pieces have had so far.
        """
        return self.cost(request)

    def lacks_memory(self) -> bool:
        """Return whether the running requests need more memory for their next step than there is.

        Then one of them is put back (`cancel`), and this is asked again.
        """
        return False

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
    def cancel(self, request_id: str) -> Mapping[str, int] | None:
        """Let a request leave, and free what it holds. It may be added again later.

        Returns:
            What it took so far, as the `usage` of a piece; None if that is unknown. If its job is
            cancelled, it counts with this against the tokens a minute of its API key.
        """

    def pause(self, request_ids: Set[str]) -> None:
        """Let these requests wait in their places, and no others, until the next call.

        Offline requests wait until each online one has its first piece, and while online ones come
        only some run in a step. It saves the online ones time; a handler need not do it.
        """

    @property
    def can_pause(self) -> bool:
        """Whether `pause` does something; the timeout of a paused request does not run."""
        return type(self).pause is not Generator.pause

    @override
    def inference(self, items: Any) -> Steps[list[Any], None, list[Any]]:
        """Run items as one batch, without a worker: for the warm-up, `headrace try` and tests.

        Yields the pieces of each step, and returns a Generated, or an error, for each item.
        """
        alone = _Alone(self, items)
        while alone.busy:
            alone.relieve()
            alone.admit()
            yield alone.step()
        return alone.outputs


class _Alone:
    """Runs items through a generator in this process, without a worker."""

    def __init__(self, generator: Generator, items: Sequence[Any]) -> None:
        self.outputs: list[Any] = [None] * len(items)
        self._generator = generator
        self._items = items
        self._waiting = deque(range(len(items)))
        self._running: dict[str, int] = {}
        self._deltas: list[list[Any]] = [[] for _ in items]
        self._tokens: list[list[int]] = [[] for _ in items]
        # The memory ran out, so nothing joins before a request has ended.
        self._full = False

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def relieve(self) -> None:
        """Put the newest requests back until the memory has room for the others."""
        while len(self._running) > 1 and self._generator.lacks_memory():
            newest, place = self._running.popitem()
            self._generator.cancel(newest)
            self._waiting.appendleft(place)
            self._full = True

    def admit(self) -> None:
        """Let requests join for which there is room, in their order."""
        while self._waiting and not (self._full and self._running):
            place = self._waiting[0]
            room = room_for(self._generator, self._items[place], bool(self._running))
            if room is False:
                return
            self._waiting.popleft()
            if isinstance(room, InputError):
                self.outputs[place] = room
                continue
            resumed = [list(self._tokens[place])] if self._tokens[place] else []
            try:
                if (preparation := self._generator.preparation(self._items[place])) is not None:
                    preparation.result()
                self._generator.add(str(place), self._items[place], *resumed)
            except Exception as error:  # noqa: BLE001 - the item fails with it, as in a worker
                self.outputs[place] = error
            else:
                self._running[str(place)] = place

    def step(self) -> list[Any]:
        """Run a step, and return the new part of each item."""
        pieces: list[Any] = [None] * len(self._items)
        for piece in self._generator.step() if self._running else ():
            place = self._running.get(piece.id, -1)
            if place < 0:
                continue
            self._tokens[place] += piece.tokens
            if piece.delta is not None:
                self._deltas[place].append(piece.delta)
                new = pieces[place]
                pieces[place] = piece.delta if new is None else joined([new, piece.delta])
            if piece.error is not None or piece.finish is not None:
                del self._running[piece.id]
                self._full = False
                self.outputs[place] = piece.error or generated(self._deltas[place], piece)
        return pieces


def generated(deltas: Sequence[Any], last: Piece) -> Generated:
    """Return the output of a request that ended with this piece."""
    return Generated(joined(deltas), last.finish or "", dict(last.usage or {}))


def room_for(
    generator: Generator, request: Any, running: bool, likely: int | None = None
) -> bool | InputError:
    """Return whether a request may join now; an error if it never could.

    Args:
        request: what its `preprocess` returned.
        running: others run, and will leave room.
        likely: what it probably takes; by default as `likely_cost` has it.
    """
    budget = generator.budget()
    if not isinstance(budget, Budget):
        raise HandlerError(f"budget returned {type(budget).__name__}, not a Budget")
    if running:
        needed = generator.likely_cost(request) if likely is None else likely
        return budget.slots > 0 and needed <= budget.tokens
    cost = generator.cost(request)
    return (budget.slots > 0 and cost <= budget.tokens) or too_large(cost, budget.tokens)


def too_large(cost: int, tokens: int) -> InputError:
    """Return the error of a request that costs more than the whole memory."""
    return InputError(
        f"the request needs {cost:,} tokens of the model's memory, which has {tokens:,}; "
        "make the prompt shorter, or ask for fewer new tokens"
    )


#: The most texts that end an answer, and the most characters of each.
STOPS_MAX: Final = 16
STOP_MAX_CHARS: Final = 1024
