"""Every metric of `GET /metrics`: its name, type, labels and help text.

`docs/metrics.md` lists the same; a test compares the two. Each label has few values: they come from
the models file, from the error codes and operations of the API, or from the hosts.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from headrace.errors import QueueFull
from headrace.observability import worker_report

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Family(NamedTuple):
    """One metric: its name without a counter's `_total`, and its labels in the order of values."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name in the exposition; for a histogram or summary, its stem."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_MODEL = ("model",)
_HOST = ("host",)
_DEVICE = ("host", "device")
_PLACE = ("model", "version", "priority")


#: All metrics.
FAMILIES: Final[list[Family]] = []


def _family(name: str, kind: Kind, text: str, labels: tuple[str, ...] = _MODEL) -> Family:
    family = Family(f"headrace_{name}", kind, text, labels)
    FAMILIES.append(family)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Family:
    return _family(name, "gauge", text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _MODEL) -> Family:
    return _family(name, "counter", text, labels)


def _histogram(name: str, text: str) -> Family:
    return _family(name, "histogram", text)


BROKER_UP: Final = _gauge("broker_up", "1 if Redis answered this scrape, else 0.")
BUILD: Final = _gauge("build_info", "1, with the version of this API process.", ("version",))
WORKERS: Final = _gauge("workers", "Workers that are alive.")
WAITING: Final = _gauge(
    "requests_waiting", "Requests that wait for the end of a job, in all API processes."
)

BACKGROUND_TASKS: Final = _gauge(
    "background_tasks_waiting", "Background tasks (webhooks) that no background worker has claimed."
)
WEBHOOKS_PENDING: Final = _gauge(
    "webhooks_pending", "Webhook deliveries being sent, or waiting for another attempt."
)
WEBHOOKS: Final = _counter(
    "webhook_tries", "Attempts to deliver a webhook, by outcome.", ("outcome",)
)

DEPTH: Final = _gauge("queue_depth", "Waiting jobs, by priority.", _PLACE)
OLDEST: Final = _gauge(
    "queue_oldest_age_seconds",
    "Waiting time of the oldest waiting job, by priority; 0 without one.",
    _PLACE,
)
TOKENS: Final = _gauge(
    "queue_tokens",
    "Tokens of all jobs that have not ended, estimated; 0 without a schedule by tokens.",
    _MODEL,
)
PAUSED: Final = _gauge("queue_paused", "1 while the queue is paused, else 0.", _MODEL)
IN_FLIGHT: Final = _gauge("jobs_in_flight", "Jobs that workers hold.", _MODEL)
SCHEDULED: Final = _gauge("jobs_scheduled", "Jobs that wait for a countdown or a retry.", _MODEL)
DEAD_LETTERS: Final = _gauge("dead_letters", "Dead letters that exist now.", _MODEL)

DEMAND: Final = _gauge(
    "demand_jobs",
    "Jobs that wait, are due or run: what replicas have, or could begin. Of a paused model, those "
    "that run.",
    _MODEL,
)
DEMAND_S: Final = _gauge(
    "demand_seconds",
    "How long one replica would run for these jobs, by all batches so far; none without a batch.",
    _MODEL,
)

#: By the name under which workers and API processes count them.
COUNTED: Final = {
    worker_report.ADMITTED: _counter("jobs_admitted", "Jobs that were submitted over HTTP."),
    worker_report.DEAD: _counter("jobs_dead", "Messages and jobs that became dead letters."),
    worker_report.PADDING: _counter(
        "batch_padding", "Inputs that were added to batches to reach an allowed size."
    ),
    worker_report.STARVED: _counter(
        "device_starved_seconds", "Time for which the device waited for a batch in preprocess."
    ),
    worker_report.LOAD_FAILURES: _counter("model_load_failures", "Failed loads of a model."),
    worker_report.RENEWED: _counter("lease_renewals", "Leases that were renewed."),
    worker_report.LEASES_LOST: _counter(
        "lease_losses", "Leases that expired, so that their jobs returned to the queue."
    ),
    worker_report.UNTOLD: _counter(
        "events_left_out", "Jobs that ended without an event for Celery's monitors, such as Flower."
    ),
}
#: Likewise, each with the values of its label that are shown from the first scrape on, so that a
#: rate begins at zero.
LABELLED: Final = {
    worker_report.REJECTED: (
        _counter(
            "jobs_rejected",
            "Submits that were refused, by the code of the problem.",
            ("model", "reason"),
        ),
        (QueueFull.code,),
    ),
    worker_report.ENDED: (
        _counter("jobs_ended", "Jobs that have ended.", ("model", "status")),
        ("succeeded", "failed", "expired", "cancelled"),
    ),
    worker_report.LEFT: (
        _counter(
            "batches",
            "Batches that ran or were lost, by the reason for their dispatch.",
            ("model", "reason"),
        ),
        ("full", "cost", "deadline", "idle", "alone", "drain"),
    ),
    worker_report.RESTARTS: (
        _counter(
            "model_restarts",
            "Model processes that were replaced: killed or dead (lost), or as planned (recycled).",
            ("model", "reason"),
        ),
        ("lost", "recycled"),
    ),
}
VERSION_ADMITTED: Final = _counter(
    "version_jobs_admitted",
    "Jobs that were submitted over HTTP for one version: it was named, or the traffic of the "
    "model has chosen it.",
    ("model", "version"),
)
RETRIED: Final = _counter("jobs_retried", "Times that a job was scheduled for another attempt.")
SHADOW: Final = _counter(
    "shadow_jobs",
    "Copies of jobs for a shadow version that have ended, by how they compare.",
    ("model", "version", "result"),
)
HISTOGRAMS: Final = {
    worker_report.QUEUE_S: _histogram(
        "queue_seconds", "Time from the submit of a job to its claim by a worker."
    ),
    worker_report.HOLD_S: _histogram(
        "hold_seconds", "Time after its claim for which a job was held back for a larger batch."
    ),
    worker_report.DEVICE_WAIT_S: _histogram(
        "device_wait_seconds", "Time after its claim for which a job waited for a busy device."
    ),
    **{
        stage: _histogram(stage, f"Time of `{stage.removesuffix('_seconds')}` for a batch.")
        for stage in worker_report.STAGES_S
    },
    worker_report.JOB_S: _histogram(
        "job_seconds",
        "Time from the submit of a job to its outcome in a model process, for each attempt.",
    ),
    worker_report.BATCH_SIZE: _histogram("batch_size", "Jobs per batch."),
}
#: Of models that stream or generate, and no others: first the histograms, ...
GENERATION_HISTOGRAMS: Final = {
    worker_report.FIRST_PIECE_S: _histogram(
        "time_to_first_token_seconds",
        "Time from the submit of a streaming job to its first piece, without offline jobs.",
    ),
    worker_report.BETWEEN_S: _histogram(
        "time_per_output_token_seconds",
        "Time between two tokens of an answer of a generator, without offline jobs.",
    ),
}
#: ... then the counters, ...
GENERATION_COUNTED: Final = {
    worker_report.PROMPT_TOKENS: _counter(
        "prompt_tokens", "Tokens of the prompts of requests that generators have ended."
    ),
    worker_report.PROMPT_TOKENS_CACHED: _counter(
        "prompt_tokens_cached", "Those of these tokens that the cache of the generator had."
    ),
    worker_report.GENERATION_TOKENS: _counter(
        "generation_tokens", "Tokens of the answers to requests that generators have ended."
    ),
}
#: ... and by the field of a `GenerationState`.
GENERATION: Final = {
    "requests": _gauge("generator_requests", "Requests that run in generators.", _MODEL),
    "used_tokens": _gauge(
        "generator_cache_used_tokens",
        "Tokens of the caches that running requests probably need.",
        _MODEL,
    ),
    "tokens": _gauge(
        "generator_cache_tokens", "Tokens for which the caches of generators have room.", _MODEL
    ),
}

REDIS_MEMORY: Final = _gauge("redis_memory_used_bytes", "Memory that Redis uses.")
REDIS_LIMIT: Final = _gauge("redis_memory_max_bytes", "The maxmemory of Redis; 0 if it has none.")
READY: Final = _gauge("model_ready_replicas", "Loaded replicas of all workers.", _MODEL)
REPLICAS: Final = _gauge("model_replicas", "Replicas that live workers should have.", _MODEL)
WORKER: Final = _gauge(
    "worker_info", "1, with the labels of a live worker, joined by commas.", ("worker", "labels")
)
MODEL_MEMORY: Final = _gauge(
    "model_memory_bytes",
    "Resident memory of a model's processes in one worker.",
    ("model", "worker"),
)
LOAD_S: Final = _family(
    "model_load_seconds", "summary", "Time to load and warm up a model process."
)

REQUESTS: Final = _counter(
    "api_requests", "Requests that were answered.", ("method", "route", "code")
)
ROUND_TRIPS: Final = _counter(
    "redis_round_trips", "Writes to Redis, each with any number of commands.", ("part",)
)
ERRORS: Final = _counter(
    "redis_errors", "Connections to Redis that broke, and commands that it refused.", ("part",)
)

#: By the field of a host's figures, ...
HOST: Final = {
    "cpus": _gauge("host_cpus", "Logical processors of a worker's host.", _HOST),
    "cpu_ratio": _gauge("host_cpu_ratio", "Busy share of the processors, 0 to 1.", _HOST),
    "memory_bytes": _gauge("host_memory_bytes", "Memory of a worker's host.", _HOST),
    "memory_available_bytes": _gauge(
        "host_memory_available_bytes", "Memory that is available without swapping.", _HOST
    ),
    "disk_bytes": _gauge(
        "host_disk_bytes", "Size of the file system with the worker's state_dir.", _HOST
    ),
    "disk_available_bytes": _gauge(
        "host_disk_available_bytes", "Free space of that file system.", _HOST
    ),
}
#: ... and of a device's.
DEVICES: Final = {
    "busy_ratio": _gauge(
        "device_utilization_ratio", "Share of the time in which a kernel ran on the GPU.", _DEVICE
    ),
    "memory_bytes": _gauge("device_memory_bytes", "Memory of the GPU.", _DEVICE),
    "memory_used_bytes": _gauge("device_memory_used_bytes", "Used memory of the GPU.", _DEVICE),
    "temperature_celsius": _gauge(
        "device_temperature_celsius", "The temperature of the GPU.", _DEVICE
    ),
    "power_watts": _gauge("device_power_watts", "The power draw of the GPU.", _DEVICE),
}
DEVICE: Final = _gauge(
    "device_info",
    "1, with the name and UUID of a worker's GPU.",
    ("host", "device", "name", "uuid"),
)
