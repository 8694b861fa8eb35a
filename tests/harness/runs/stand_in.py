"""A server for runs without sockets: answers the engine's requests from a dictionary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from headrace.client import Client
from headrace.client.sansio import ConnectionFailed, HttpRequest, HttpResponse
from headrace.runs.interfaces import NOTHING_CARRIED, Cursor, Entry, Source

Outcome = dict[str, Any]
PROBLEM = {"content-type": "application/problem+json"}


def succeeded(value: Any) -> Outcome:
    return {"status": "succeeded", "attempts": 1, "timings": {"total": 1.5}, "result": value}


def problem(code: str, status: int) -> Outcome:
    return {"type": f"/problems/{code}", "status": status, "detail": f"it is {code}"}


class StandIn(Client):
    """Ends each job with `outcome`, as soon as it is looked up.

    Args:
        outcome: for a job's id and input: how it ended, only its status, or None if it is lost.
        refuse: for an id: the problem of its line, or None.

    Attributes:
        submits: the ids of all lines; requests may overtake each other.
        forgotten: ids in requests to forget.
        broken: how many requests end with a broken connection.
    """

    def __init__(
        self,
        outcome: Callable[[str, Any], Outcome | None] = lambda _, value: succeeded(value),
        refuse: Callable[[str], Outcome | None] = lambda _: None,
    ) -> None:
        super().__init__("http://stand.in", retry_s=60)
        self.session.reached = True
        self._outcome = outcome
        self._refuse = refuse
        self._inputs: dict[str, Any] = {}
        self.submits: list[str] = []
        self.forgotten: list[str] = []
        self.cancelled: list[str] = []
        self.broken = 0
        self.keep_names = True

    @override
    async def _send(self, request: HttpRequest) -> HttpResponse | ConnectionFailed:
        if self.broken > 0:  # several threads send
            self.broken -= 1
            return ConnectionFailed("it fell over", refused=False)
        where = request.path.rpartition("/")[2]
        body = request.body or b""
        if where == "bulk":
            return HttpResponse(200, {}, self._submit(body))
        if where in ("outcomes", "forget", "cancel"):
            reply: Any = getattr(self, f"_{where}")(json.loads(body)["ids"])
            return HttpResponse(200, {}, json.dumps(reply).encode())
        return HttpResponse(200, {}, b"{}")

    def _submit(self, body: bytes) -> bytes:
        replies = []
        for line in body.splitlines():
            job = json.loads(line)
            if self.keep_names:
                self.submits.append(job["id"])
            refused = self._refuse(job["id"])
            if refused is None:
                self._inputs[job["id"]] = job.get("input")
            replies.append({"error": refused} if refused else {"accepted": 1})
        return b"".join(json.dumps(line).encode() + b"\n" for line in replies)

    def _outcomes(self, ids: list[str]) -> Any:
        return {"outcomes": [self._end(job_id) for job_id in ids]}

    def _end(self, job_id: str) -> Outcome | None:
        if job_id not in self._inputs:
            return None
        found = self._outcome(job_id, self._inputs[job_id])
        if found is None:
            del self._inputs[job_id]
        return found

    def _forget(self, ids: list[str]) -> Any:
        for job_id in ids:
            self._inputs.pop(job_id, None)
        if self.keep_names:
            self.forgotten += ids
        return {"forgotten": len(ids)}

    def _cancel(self, ids: list[str]) -> Any:
        self.cancelled += ids
        return {"jobs": [{"id": i, "outcome": "removed", "status": "cancelled"} for i in ids]}


class Counted(Source):
    """A source of `count` inputs, made by a function of their number."""

    def __init__(self, count: int, value: Callable[[int], Any]) -> None:
        self._count = count
        self._value = value
        self.began: list[int] = []

    @override
    def describe(self) -> dict[str, Any]:
        return {"kind": "counted", "count": self._count}

    @override
    def count(self) -> int | None:
        return self._count

    @override
    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        assert n == (0 if after is None else after + 1)
        self.began.append(n)
        for number in range(n, self._count):
            yield Entry(number, f"k{number}", self._value(number), NOTHING_CARRIED, number)
