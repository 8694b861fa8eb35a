"""Tracks which input is which job, and which outcomes are not written yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.cli.jobs.resume_file import PreviousRows
from headrace.cli.shared.inputs import Input
from headrace.errors import HeadraceError
from headrace.jobs.ids import new_id


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """An input that the client has taken.

    Attributes:
        place: its index among all inputs, from 0.
        key: the input's name for the user.
        job_id: the id of its job.
    """

    place: int
    key: str
    job_id: str


class Tracker:
    """Gives inputs to the client and keeps those whose outcome is not written yet.

    Holds as many inputs as the client has taken. The client may take them in another thread.

    Args:
        inputs: all inputs.
        earlier: the rows of earlier commands.
        job_id: the id of a single input, if the user chose one.
    """

    def __init__(
        self, inputs: Iterable[Input], earlier: PreviousRows, job_id: str | None = None
    ) -> None:
        self._inputs = inputs
        self._earlier = earlier
        self._job_id = job_id
        self._in_flight: dict[int, SubmittedJob] = {}
        self._ids: deque[str] = deque()
        self._invalid: deque[tuple[SubmittedJob, HeadraceError]] = deque()
        self.already_done = 0
        self.all_taken = False

    def values(self) -> Iterator[Any]:
        """Yield the inputs for the client."""
        number = 0
        for place, one in enumerate(self._inputs):
            if self._earlier.is_done(one.key):
                self.already_done += 1
                continue
            job_id = self._job_id or self._earlier.id_of(one.key) or new_id()
            sent = SubmittedJob(place, one.key, job_id)
            if isinstance(one.value, HeadraceError):
                self._invalid.append((sent, one.value))
                continue
            self._in_flight[number] = sent
            self._ids.append(job_id)
            number += 1
            yield one.value
        self.all_taken = True

    def ids(self) -> Iterator[str]:
        """Yield the job ids of `values`, in the same order."""
        while True:
            yield self._ids.popleft()

    def sent(self, number: int) -> SubmittedJob:
        """Return the input with the client's index `number`; its outcome is not written yet."""
        return self._in_flight[number]

    def mark_written(self, number: int) -> None:
        """Forget an input whose outcome is written."""
        del self._in_flight[number]

    def invalid(self, before: int | None = None) -> Iterator[tuple[SubmittedJob, HeadraceError]]:
        """Yield inputs that cannot be read, each once; with `before`, only those before it."""
        while self._invalid and (before is None or self._invalid[0][0].place < before):
            yield self._invalid.popleft()

    def in_flight(self) -> list[SubmittedJob]:
        """Return the inputs whose outcome is not written. Some may not have been sent yet."""
        return list(self._in_flight.values())
