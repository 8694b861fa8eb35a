"""Inputs on their way through the client: which job each is, and which have not come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cli.jobs.resume_file import PreviousRows
from headrace.cli.shared.inputs import Input
from headrace.errors import HeadraceError
from headrace.jobs.job import new_id


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """An input that was handed to the client.

    Attributes:
        place: among all inputs, from 0.
        key: what the user knows it by.
        job_id: the id under which it is submitted.
    """

    place: int
    key: str
    job_id: str


class Tracker:
    """Feeds the client, and remembers what is under way: as many as that takes in, and no more.

    The client may take inputs in a thread of its own.

    Args:
        inputs: all of them.
        earlier: what an earlier run has done.
        job_id: the id of the only input, where the user chose one.
    """

    def __init__(
        self, inputs: Iterable[Input], earlier: PreviousRows, job_id: str | None = None
    ) -> None:
        self._inputs = inputs
        self._earlier = earlier
        self._job_id = job_id
        self._under_way: dict[int, SubmittedJob] = {}
        self._ids: deque[str] = deque()
        self._bad: deque[tuple[SubmittedJob, HeadraceError]] = deque()
        self.already_done = 0
        self.all_taken = False

    def values(self) -> Iterator[Any]:
        """What the client is to submit."""
        number = 0
        for place, one in enumerate(self._inputs):
            if self._earlier.is_done(one.key):
                self.already_done += 1
                continue
            job_id = self._job_id or self._earlier.id_of(one.key) or new_id()
            sent = SubmittedJob(place, one.key, job_id)
            if isinstance(one.value, HeadraceError):
                self._bad.append((sent, one.value))
                continue
            self._under_way[number] = sent
            self._ids.append(job_id)
            number += 1
            yield one.value
        self.all_taken = True

    def ids(self) -> Iterator[str]:
        """The ids of these, in step with `values`."""
        while True:
            yield self._ids.popleft()

    def sent(self, number: int) -> SubmittedJob:
        """The input that the client took as its `number`th; it has not come back yet."""
        return self._under_way[number]

    def came_back(self, number: int) -> None:
        """That input has its outcome, and the outcome is written."""
        del self._under_way[number]

    def bad(self, before: int | None = None) -> Iterator[tuple[SubmittedJob, HeadraceError]]:
        """Inputs that cannot be sent, each once; only those before a place where one is given."""
        while self._bad and (before is None or self._bad[0][0].place < before):
            yield self._bad.popleft()

    def left(self) -> list[SubmittedJob]:
        """What has not come back. Some of it may not have been sent yet."""
        return list(self._under_way.values())
