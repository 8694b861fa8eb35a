"""The content of the view: models with their rates, hosts, devices and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extensions.top.cli.sample import Labels, Sample, Span

STEPS: Final = ("0", "3", "6", "9")
#: A backlog that takes longer than this is shown as never empty.
SLOWEST_S: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model or pipeline. Rates are per second; unknown values are None.

    Attributes:
        waits: waiting jobs by priority step.
        leased: jobs that workers have claimed.
        memory: bytes of its processes.
        tokens: estimated tokens of the jobs that have not ended; None for a model that counts none.
        tokens_in_s: tokens of the prompts of requests that have ended; `tokens_out_s`: of answers.
    """

    name: str
    state: str
    paused: bool
    waits: Mapping[str, int]
    oldest_s: float
    leased: int
    scheduled: int
    dead: int
    ready: int
    replicas: int
    restarts: int
    memory: float
    in_s: float | None = None
    out_s: float | None = None
    failed_s: float | None = None
    retried_s: float | None = None
    rejected_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    batch: float | None = None
    tokens: int | None = None
    tokens_in_s: float | None = None
    tokens_out_s: float | None = None

    @property
    def waiting(self) -> int:
        """Return the number of waiting jobs of all priorities."""
        return sum(self.waits.values())

    @property
    def eta_s(self) -> float | None:
        """Return the seconds until the queue is empty at present rates; infinite if it grows."""
        if self.in_s is None or self.out_s is None or not self.waiting:
            return None
        gain_s = self.out_s - self.in_s
        left_s = self.waiting / gain_s if gain_s > 0 else math.inf
        return left_s if left_s <= SLOWEST_S else math.inf


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The host of a worker, or a GPU.

    Attributes:
        kind: the first word of its series, `host` or `device`.
    """

    sample: Sample
    kind: str
    labels: Labels
    name: str = ""

    def get(self, value: str) -> float | None:
        """Return a value; None if it is not reported."""
        return self.sample.of(f"{self.kind}_{value}").get(self.labels)

    def one(self, value: str) -> float:
        """Return a value; 0 if it is not reported."""
        return self.get(value) or 0.0


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """The processes of a model on one worker.

    Attributes:
        model: "" for a worker with labels that has no process.
        labels: those of the worker, joined by commas.
    """

    worker: str
    model: str
    memory: float
    labels: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown.

    Attributes:
        broker: whether Redis answered the API.
        waiters: requests that wait for the end of a job.
        requests_s: requests to the API per second; `errors_s` of them were answered with 5xx.
    """

    version: str
    broker: bool
    workers: int
    waiters: int
    models: Sequence[ModelRow] = ()
    hosts: Sequence[PlaceRow] = ()
    devices: Sequence[PlaceRow] = ()
    processes: Sequence[ProcessRow] = ()
    requests_s: float | None = None
    errors_s: float | None = None
    trips_s: float | None = None
    redis_memory: float = 0.0
    redis_limit: float = 0.0

    def sum_of(self, value: Callable[[ModelRow], float | None]) -> float | None:
        """Return the sum over the models; None if no value is known."""
        known = [found for row in self.models if (found := value(row)) is not None]
        return sum(known) if known or not self.models else None


def view_of(now: Sample, before: Sample | None) -> View:
    """Return the view of a sample.

    Args:
        before: the sample from which rates are measured; None for no rates.
    """
    span = Span(now, before)
    version = next(iter(now.of("build_info")), ("",))[0]
    names = list(now.states) or list(dict.fromkeys(k[0] for k in now.of("queue_depth")))
    return View(
        version=version,
        broker=now.one("broker_up") == 1,
        workers=int(now.one("workers")),
        waiters=int(now.one("requests_waiting")),
        models=[_model(name, now, span) for name in names] if now.of("queue_depth") else (),
        hosts=[PlaceRow(now, "host", host) for host in sorted(now.of("host_cpus"))],
        devices=[
            PlaceRow(now, "device", (host, device), name)
            for host, device, name in sorted(now.of("device_info"))
        ],
        processes=_processes(now),
        requests_s=span.rate("api_requests_total"),
        errors_s=span.rate("api_requests_total", only=lambda labels: labels[2].startswith("5")),
        trips_s=span.rate("redis_round_trips_total"),
        redis_memory=now.one("redis_memory_used_bytes"),
        redis_limit=now.one("redis_memory_max_bytes"),
    )


def _processes(now: Sample) -> list[ProcessRow]:
    labels = {place[0]: place[1] for place in now.of("worker_info")}
    rows = [
        ProcessRow(worker, model, memory, labels.get(worker, ""))
        for (model, worker), memory in now.of("model_memory_bytes").items()
    ]
    idle = labels.keys() - {row.worker for row in rows}
    rows += [ProcessRow(worker, "", 0, labels[worker]) for worker in idle if labels[worker]]
    return sorted(rows, key=lambda row: (row.worker, row.model))


def _model(name: str, now: Sample, span: Span) -> ModelRow:
    waits = {step: int(now.one("queue_depth", name, step)) for step in STEPS}
    ages = [now.one("queue_oldest_age_seconds", name, step) for step in STEPS]
    leased, scheduled = now.one("jobs_in_flight", name), now.one("jobs_scheduled", name)
    out_s = span.rate("jobs_ended_total", name)
    in_s = None
    if out_s is not None and span.before is not None:
        # Ended jobs plus the growth of the queue count jobs from HTTP and from Celery.
        before = span.before.total("queue_depth", name) + sum(
            span.before.one(series, name) for series in ("jobs_in_flight", "jobs_scheduled")
        )
        more = sum(waits.values()) + leased + scheduled - before
        in_s = max(0.0, out_s + more / span.seconds)
    batches = span.grown("batch_size_count", name)
    tokens = int(now.one("queue_tokens", name))
    # The server has these series of generators only.
    generates = (name,) in now.of("generation_tokens_total")
    return ModelRow(
        name=name,
        state=now.states.get(name, ""),
        paused=now.one("queue_paused", name) == 1,
        waits=waits,
        oldest_s=max(ages),
        leased=int(leased),
        scheduled=int(scheduled),
        dead=int(now.one("dead_letters", name)),
        ready=int(now.one("model_ready_replicas", name)),
        replicas=int(now.one("model_replicas", name)),
        restarts=int(now.total("model_restarts_total", name)),
        memory=now.total("model_memory_bytes", name),
        in_s=in_s,
        out_s=out_s,
        failed_s=span.rate("jobs_ended_total", name, only=lambda k: k[1] in ("failed", "expired")),
        retried_s=span.rate("jobs_retried_total", name),
        rejected_s=span.rate("jobs_rejected_total", name),
        p50_s=span.quantile("job_seconds_bucket", name, 0.5),
        p99_s=span.quantile("job_seconds_bucket", name, 0.99),
        batch=span.grown("batch_size_sum", name) / batches if batches else None,
        tokens=tokens if tokens or generates else None,
        tokens_in_s=span.rate("prompt_tokens_total", name) if generates else None,
        tokens_out_s=span.rate("generation_tokens_total", name) if generates else None,
    )
