"""The handler of an archive with `continuousBatching`: each step is a call of its `handle`.

A call gets all requests that run, as with TorchServe. The inputs of a request come with its first
call only; later ones have its headers. What the handler keeps for a request is in `context.cache`,
by its id. After the call, `context.stopping_criteria` has a function for each request, which takes
the value returned for it. True ends the request; after False the value is a piece of the reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator as Steps
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from extensions.torchserve.handlers.handler import (
    Members,
    TorchServeHandler,
    is_alone,
    is_lost_device,
)
from extensions.torchserve.handlers.results import STREAM_NEXT, Reply, result_of
from headrace.errors import HandlerError
from headrace.generator import Budget, Generated, Generator, Piece


@dataclass(slots=True)
class _Request:
    """A request of the batch.

    Attributes:
        members: its inputs; nothing once the handler has them.
        headers: its headers, without the types of its inputs.
        reply: the status and the headers with which its reply has begun; None before.
    """

    members: Members
    headers: dict[str, Any]
    joined: bool = False
    reply: Reply | None = None


class ContinuousHandler(TorchServeHandler, Generator):
    """Runs an archive's `handle(data, context)` as a generator."""

    # The arguments are those of TorchServeHandler.
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._requests: dict[str, _Request] = {}
        #: By id: the results of the requests that this step has ended.
        self._results: dict[str, Any] = {}

    @override
    def preprocess(self, inputs: list[Any]) -> list[Any]:
        return [
            _Request(self._members(place, item), self._headers(place))
            for place, item in enumerate(inputs)
        ]

    @override
    def budget(self) -> Budget:
        # TorchServe's number: a request finds room while an earlier one of its sequence runs.
        most = self.context.max_batch_size * (2 if self._sequences else 1)
        free = most - len(self._requests)
        return Budget(slots=free, tokens=free)

    @override
    def add(self, request_id: str, request: _Request, resume_from: Sequence[int] = ()) -> None:
        self._requests[request_id] = request

    @override
    def cancel(self, request_id: str) -> None:
        self._forget(request_id)
        # A handler removes what it keeps when a request ends, and does not see that this one does.
        cache = getattr(self._ts, "cache", None)
        if isinstance(cache, dict):
            cache.pop(request_id, None)

    @override
    def step(self) -> Iterator[Piece]:
        self._results = {}
        for ids, alone in self._calls():
            yield from self._run(ids, alone=alone)

    @override
    def inference(self, items: Any) -> Steps[list[Any], None, list[Any]]:
        """Run items as one batch, without a worker: for `headrace try` and tests."""
        results: list[Any] = [None] * len(items)
        waiting = deque(enumerate(items))
        while waiting or self._requests:
            while waiting and self.budget().slots > 0:
                place, request = waiting.popleft()
                self.add(str(place), request)
            for piece in self.step():
                results[int(piece.id)] = piece.error or self._results[piece.id]
            yield [None] * len(items)
        return results

    @override
    def postprocess(self, outputs: list[Any]) -> list[Any]:
        return [
            self._results[one.finish_reason] if isinstance(one, Generated) else one
            for one in outputs
        ]

    def _calls(self) -> list[tuple[list[str], bool]]:
        """Return the requests of each call of this step, and whether it is for one request alone.

        The requests of one sequence join one by one, each in a call after that of the one before.
        """
        calls = [([name], True) for name, one in self._requests.items() if is_alone(one.headers)]
        together: list[str] = []
        joining: set[str] = set()
        for name, one in self._requests.items():
            if is_alone(one.headers):
                continue
            sequence = self._sequences.id_of(one.headers) if self._sequences else name
            if one.joined or sequence not in joining:
                together.append(name)
            if not one.joined:
                joining.add(sequence)
        return [*calls, (together, False)] if together else calls

    def _run(self, ids: list[str], *, alone: bool) -> Iterator[Piece]:
        """Call the handler; yield what ends. If it raises, all requests of the call end."""
        requests = [self._requests[name] for name in ids]
        self._begin_call(ids, [self._with_types(one.headers, one.members) for one in requests])
        before = [len(self._pieces.get(name, ())) for name in ids]
        self._in_batch = True
        try:
            values = self._call([self._row(one.members) for one in requests])
            words = [alone or self._word(n, value) for n, value in enumerate(values)]
        except Exception as error:
            if is_lost_device(error):
                raise
            for name in ids:
                self.cancel(name)
                yield Piece(name, error=error)
            return
        finally:
            self._in_batch = False
            self._send_rows()
        for n, (name, value) in enumerate(zip(ids, values, strict=True)):
            requests[n].members, requests[n].joined = {}, True
            sent = len(self._pieces.get(name, ())) > before[n]
            piece = self._taken(n, name, value, self._ends(n, words[n], sent=sent))
            if piece is not None:
                yield piece

    def _word(self, n: int, value: Any) -> bool | None:
        """Return the word of the stopping criterion of a request; None for nothing."""
        criteria = self._ts.stopping_criteria
        if not criteria:
            return None
        try:
            criterion = criteria[n]
        except LookupError:
            raise HandlerError(
                f"context.stopping_criteria has nothing for the request {n} of a call",
                hint="set one function for each request of the call",
            ) from None
        word = criterion(value)
        return None if word is None else bool(word)

    def _ends(self, n: int, word: bool | None, *, sent: bool) -> bool:
        """Return whether a request ends with this call.

        Without a word of its criterion, a value is the whole reply, or another piece of it. Without
        criteria, it is the last one behind the pieces that the handler has sent in this call.
        """
        if word is not None:
            return word
        if sent and not self._ts.stopping_criteria:
            return True
        return (self._ts.request_ids or {})[n] not in self._pieces

    def _taken(self, n: int, name: str, value: Any, ends: bool) -> Piece | None:
        """Take what the handler returned for a request; return its end, if it ends."""
        one, reply = self._requests[name], self._reply(n)
        if ends and not reply.pieces:
            return self._end(name, result_of(value, reply))
        if one.reply is None:
            one.reply = reply
        self._ts.set_response_header(n, STREAM_NEXT, "false" if ends else "true")
        try:
            self._keep_piece(n, name, value)
        except HandlerError as error:
            self.cancel(name)
            return Piece(name, error=error)
        if not ends:
            return None
        *before, last = self._pieces[name]
        begun = one.reply
        headers = {**begun.headers, **self._ends_of(reply.headers)}
        return self._end(name, result_of(last, Reply(begun.status, begun.phrase, headers, before)))

    def _ends_of(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the header by which a reply ends sequences.

        The last piece may have it where the first one had not.
        """
        if self._sequences is None:
            return {}
        return {k: v for k, v in headers.items() if k.lower() == self._sequences.end.lower()}

    def _end(self, name: str, result: Any) -> Piece:
        self._forget(name)
        if isinstance(result, HandlerError):
            return Piece(name, error=result)
        self._results[name] = result
        # By it `postprocess` finds the result.
        return Piece(name, finish=name)

    def _forget(self, name: str) -> None:
        self._requests.pop(name, None)
        self._pieces.pop(name, None)
