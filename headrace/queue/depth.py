"""The depth of queues, from the reply of queues/depth.lua. Independent of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.redis import keys
from headrace.redis.clock import US_PER_S


@dataclass(frozen=True, slots=True)
class Depth:
    """The state of one queue.

    Attributes:
        waiting: how many jobs wait, by step: {0: …, 3: …, 6: …, 9: …}.
        scheduled: how many jobs wait for a countdown or a retry.
        in_flight: how many jobs a worker has leased.
        dead: how many dead letters there are.
        oldest_age_s: how long the oldest waiting job has waited; None if none waits, or only
            messages of stock clients, which have no time.
        oldest_ages_s: the same for each step, if it is known.
        tokens: of all jobs that have not ended, estimated; 0 if the model's schedule is not by
            tokens.
    """

    queue: str
    waiting: dict[int, int]
    scheduled: int
    in_flight: int
    dead: int
    oldest_age_s: float | None
    oldest_ages_s: dict[int, float]
    tokens: int = 0

    @property
    def total(self) -> int:
        """The jobs that count for admission: waiting and scheduled."""
        return sum(self.waiting.values()) + self.scheduled


@dataclass(frozen=True, slots=True)
class Depths:
    """The state of many queues by column, in the order of the queues; see `Depth`.

    Attributes:
        oldest_ages_s: for each step; 0 if it is unknown.
    """

    waiting: Sequence[Sequence[int]]
    scheduled: Sequence[int]
    in_flight: Sequence[int]
    dead: Sequence[int]
    oldest_ages_s: Sequence[Sequence[float]]
    tokens: Sequence[int]


def read_columns(answer: Sequence[Any]) -> Depths:
    """Read the reply for many queues by column, which costs a third of a `Depth` for each."""
    now, *rows = answer
    columns = list(zip(*rows, strict=True)) or [()] * 12
    now_us = int(now)
    ages = [[_age_s(now_us, since) for since in column] for column in columns[7:11]]
    return Depths(columns[:4], columns[4], columns[5], columns[6], ages, columns[11])


def _age_s(now_us: int, since: bytes) -> float:
    return max(0.0, (now_us - int(since)) / US_PER_S) if since else 0


def read_depths(queues: Sequence[str], answer: Sequence[Any]) -> list[Depth]:
    """Read the reply for these queues."""
    now, *rows = answer
    return [_depth(queue, row, int(now)) for queue, row in zip(queues, rows, strict=True)]


def _depth(queue: str, row: Sequence[Any], now_us: int) -> Depth:
    waiting = {step: int(row[index]) for index, step in enumerate(keys.STEPS)}
    ages = {
        step: _age_s(now_us, since)
        for step, since in zip(keys.STEPS, row[7:11], strict=True)
        if since
    }
    oldest = max(ages.values(), default=None)
    return Depth(queue, waiting, int(row[4]), int(row[5]), int(row[6]), oldest, ages, int(row[11]))
