"""Scenarios: how the requests of a load arrive, and when each one is due."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from extensions.tuning.bench.measurement import Objective, ScenarioKind
from headrace.errors import InvalidRequest

#: How many requests the scenario `offline` has under way.
OFFLINE_CONCURRENCY: Final = 256
KINDS: Final = "server, closed:N, single, offline or replay:FILE"
_OBJECTIVE_HINT: Final = "write it as p99=100ms or p95=2s"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How requests arrive.

    Attributes:
        kind: `server` has Poisson arrivals at `rate`. `closed` and `single` send a request when one
            is answered. In `offline` all are due at once. `replay` has recorded times.
        concurrency: the most requests under way; 0 for any number.
        due_s: the recorded times of `replay`, ascending, from the start.
        requests: how many requests to send; 0 for as many as the duration has.
    """

    kind: ScenarioKind
    rate: float = 0.0
    concurrency: int = 0
    due_s: tuple[float, ...] = ()
    requests: int = 0

    def arrivals(self, duration_s: float, seed: int) -> Iterator[float]:
        """Yield the seconds from the start at which requests are due; endless if it is closed."""
        due = self._times(duration_s, seed)
        return itertools.islice(due, self.requests) if self.requests else due

    def _times(self, duration_s: float, seed: int) -> Iterator[float]:
        if self.kind == "server":
            return _poisson(self.rate, duration_s, seed)
        if self.kind == "replay":
            return itertools.takewhile(lambda due: due < duration_s, self.due_s)
        return itertools.repeat(0.0)

    def share(self, process: int, processes: int) -> Scenario:
        """Return the part of the load that one of several generator processes sends."""
        return msgspec.structs.replace(
            self,
            rate=self.rate / processes,
            concurrency=_part(self.concurrency, process, processes),
            due_s=self.due_s[process::processes],
            requests=_part(self.requests, process, processes),
        )


def _part(number: int, process: int, processes: int) -> int:
    return number // processes + (process < number % processes)


def _poisson(rate: float, duration_s: float, seed: int) -> Iterator[float]:
    draw = random.Random(seed)  # noqa: S311 - repeatable on purpose
    due = draw.expovariate(rate)
    while due < duration_s:
        yield due
        due += draw.expovariate(rate)


def scenario_of(text: str, *, rate: float = 0.0, requests: int = 0) -> Scenario:
    """Return the scenario that a text names.

    Args:
        text: `server`, `closed:N`, `single`, `offline` or `replay:FILE`.
        rate: requests a second; `server` needs it.
        requests: how many requests; `offline` needs it, others end by their duration.

    Raises:
        InvalidRequest: the text, a number in it or the file is wrong.
    """
    kind, _, value = text.partition(":")
    if kind == "server" and not value:
        if rate <= 0:
            raise InvalidRequest("the scenario server needs a rate above 0", hint="add --rate 50")
        return Scenario(kind="server", rate=rate, requests=requests)
    if rate:
        raise InvalidRequest(f"the scenario {text} has no rate", hint="remove --rate")
    if kind == "closed":
        if not value.isdecimal() or int(value) < 1:
            raise InvalidRequest(
                f"{text}: N is how many requests are under way", hint="write it as closed:8"
            )
        return Scenario(kind="closed", concurrency=int(value), requests=requests)
    if kind == "single" and not value:
        return Scenario(kind="single", concurrency=1, requests=requests)
    if kind == "offline" and not value:
        if requests < 1:
            raise InvalidRequest(
                "the scenario offline needs a number of requests", hint="add --requests 1000"
            )
        return Scenario(kind="offline", concurrency=OFFLINE_CONCURRENCY, requests=requests)
    if kind == "replay" and value:
        return Scenario(kind="replay", due_s=recorded(Path(value)), requests=requests)
    raise InvalidRequest(f"{text!r} is no scenario", hint=f"use {KINDS}")


class _Recorded(msgspec.Struct):
    due_s: float


def recorded(file: Path) -> tuple[float, ...]:
    """Return the arrivals that a file has, from the first one, in seconds.

    Each line is a number of seconds, or a JSON object with `due_s`, as `--rows FILE.jsonl` writes.

    Raises:
        InvalidRequest: the file cannot be read, has no arrival, or a line is neither.
    """
    try:
        lines = file.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(
            f"{file}: cannot be read: {reason}", hint="check the file of replay"
        ) from error
    times = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=float | _Recorded)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(
                f"{file}:{number}: {error}", hint="a line is a number of seconds, or has due_s"
            ) from error
        times.append(found.due_s if isinstance(found, _Recorded) else found)
    if not times:
        raise InvalidRequest(f"{file}: has no arrivals", hint="write one number of seconds a line")
    times.sort()
    return tuple(due - times[0] for due in times)


def objective_of(text: str, *, confidence: float = 0.99) -> Objective:
    """Return the objective that a text such as `p99=100ms` names.

    Raises:
        InvalidRequest: it is not such a text, or a number is out of range.
    """
    name, _, limit = text.replace(" ", "").partition("=")
    unit = "ms" if limit.endswith("ms") else "s"
    try:
        percentile = float(name.removeprefix("p")) if name.startswith("p") else 0.0
        latency_ms = float(limit.removesuffix(unit)) * (1 if unit == "ms" else 1000)
    except ValueError:
        raise InvalidRequest(f"{text!r} is no objective", hint=_OBJECTIVE_HINT) from None
    if "." not in name and percentile >= 990 and name.startswith("p99"):
        percentile /= 10 ** (len(name) - 3)  # p999 is 99.9
    if not limit.endswith("s") or not 0 < percentile < 100 or not 0 < latency_ms < float("inf"):
        raise InvalidRequest(f"{text!r} is no objective", hint=_OBJECTIVE_HINT)
    if not 0 < confidence < 1:
        raise InvalidRequest(f"confidence {confidence:g} must be between 0 and 1")
    return Objective(percentile=percentile, latency_ms=latency_ms, confidence=confidence)
