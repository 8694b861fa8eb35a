"""Every metric of `GET /metrics`: its name, type, labels, and what it says.

`docs/metrics.md` lists the same; a test holds the two together. Each label has few values: they
come from the models file, from our own errors and routes, or from the hosts that there are.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from headrace.observability import worker_report

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: without the `_total` of a counter, as prometheus-client has it.
        kind: its type.
        text: what it says.
        labels: their names, in the order in which values are given.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The name that is shown and asked for; of a histogram or summary, its stem."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_MODEL = ("model",)
_HOST = ("host",)
_DEVICE = ("host", "device")
_PLACE = ("model", "version", "priority")


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Family:
    return Family(f"headrace_{name}", "gauge", text, labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = _MODEL) -> Family:
    return Family(f"headrace_{name}", "counter", text, labels)


def _histogram(name: str, text: str) -> Family:
    return Family(f"headrace_{name}", "histogram", text, _MODEL)


BROKER_UP: Final = _gauge("broker_up", "Whether Redis answered this scrape.")
BUILD: Final = _gauge("build_info", "1, with the version that answers.", ("version",))
WORKERS: Final = _gauge("workers", "Workers that are alive.")
WAITING: Final = _gauge("requests_waiting", "Requests that wait for a job's end.")

ERRANDS: Final = _gauge("errands_waiting", "Errands that no background worker has taken.")
WEBHOOKS_PENDING: Final = _gauge(
    "webhooks_pending", "Webhook deliveries that wait for another try."
)
WEBHOOKS: Final = _counter(
    "webhook_tries", "Tries to deliver a webhook, by what came of them.", ("outcome",)
)

DEPTH: Final = _gauge("queue_depth", "Jobs that wait, by priority.", _PLACE)
OLDEST: Final = _gauge(
    "queue_oldest_age_seconds",
    "How long the oldest waiting job has waited, by priority; 0 when none waits.",
    _PLACE,
)
PAUSED: Final = _gauge("queue_paused", "Whether nothing is claimed from the queue.", _MODEL)
IN_FLIGHT: Final = _gauge("jobs_in_flight", "Jobs that workers hold.", _MODEL)
SCHEDULED: Final = _gauge("jobs_scheduled", "Jobs that wait for a countdown or a retry.", _MODEL)
LETTERS: Final = _gauge("dead_letters", "Messages and jobs among the dead letters.", _MODEL)

ADMITTED: Final = _counter("jobs_admitted", "Jobs that were enqueued over HTTP.")
REJECTED: Final = _counter(
    "jobs_rejected", "Submits that were refused, by the code of the problem.", ("model", "reason")
)
ENDED: Final = _counter("jobs_ended", "Jobs that have ended.", ("model", "status"))
RETRIED: Final = _counter("jobs_retried", "Times that a job was put off for another try.")
DEAD: Final = _counter("jobs_dead", "Messages and jobs that went to the dead letters.")

QUEUE_S: Final = _histogram("queue_seconds", "From a job's submit until a worker claimed it.")
HOLD_S: Final = _histogram(
    "hold_seconds", "From a job's claim until its batch was handed to a model process."
)
PREPROCESS_S: Final = _histogram("preprocess_seconds", "What `preprocess` took for a batch.")
INFERENCE_S: Final = _histogram("inference_seconds", "What `inference` took for a batch.")
POSTPROCESS_S: Final = _histogram("postprocess_seconds", "What `postprocess` took for a batch.")
JOB_S: Final = _histogram(
    "job_seconds",
    "From a job's submit until a model process had answered for it, retries included.",
)
BATCH_SIZE: Final = _histogram("batch_size", "Jobs that ran together.")
HISTOGRAMS: Final = {
    worker_report.QUEUE_S: QUEUE_S,
    worker_report.HOLD_S: HOLD_S,
    worker_report.STAGES_S[0]: PREPROCESS_S,
    worker_report.STAGES_S[1]: INFERENCE_S,
    worker_report.STAGES_S[2]: POSTPROCESS_S,
    worker_report.JOB_S: JOB_S,
    worker_report.BATCH_SIZE: BATCH_SIZE,
}

BATCHES: Final = _counter(
    "batches", "Batches that have run, by why they left.", ("model", "reason")
)
PADDING: Final = _counter(
    "batch_padding", "Inputs that were added to batches to reach an allowed size."
)
STARVED: Final = _counter(
    "device_starved_seconds",
    "For how long the device waited for a batch that was still in preprocess.",
)

REDIS_MEMORY: Final = _gauge("redis_memory_used_bytes", "Memory that Redis uses.")
REDIS_LIMIT: Final = _gauge("redis_memory_max_bytes", "Redis' maxmemory; 0 where it has none.")
READY: Final = _gauge("model_ready_replicas", "Replicas that are loaded, over all workers.", _MODEL)
REPLICAS: Final = _gauge(
    "model_replicas", "Replicas that there are to be, over all live workers.", _MODEL
)
MODEL_MEMORY: Final = _gauge(
    "model_memory_bytes",
    "Resident memory of a model's processes in one worker.",
    ("model", "worker"),
)
RESTARTS: Final = _counter(
    "model_restarts",
    "Model processes that were replaced: killed or dead (lost), or by plan (recycled).",
    ("model", "reason"),
)
LOAD_FAILURES: Final = _counter("model_load_failures", "Times that a model could not be loaded.")
LOAD_S: Final = Family(
    "headrace_model_load_seconds",
    "summary",
    "What loading and warming up a model process took.",
    _MODEL,
)
RENEWED: Final = _counter("lease_renewals", "Leases that were renewed.")
UNTOLD: Final = _counter(
    "events_left_out",
    "Jobs that ended and of which Celery's monitors, Flower too, were told nothing.",
)
LEASES_LOST: Final = _counter(
    "lease_losses", "Leases that ran out, so that their jobs went back to the queue."
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

HOST_CPUS: Final = _gauge("host_cpus", "Logical processors of a worker's host.", _HOST)
HOST_CPU: Final = _gauge("host_cpu_ratio", "Which part of them was busy, 0 to 1.", _HOST)
HOST_MEMORY: Final = _gauge("host_memory_bytes", "Memory of a worker's host.", _HOST)
HOST_MEMORY_FREE: Final = _gauge(
    "host_memory_available_bytes", "What of it can be had without swapping.", _HOST
)
HOST_DISK: Final = _gauge(
    "host_disk_bytes", "Size of the file system with the worker's state_dir.", _HOST
)
HOST_DISK_FREE: Final = _gauge("host_disk_available_bytes", "What of it is free.", _HOST)

DEVICE: Final = _gauge(
    "device_info", "1, with what a worker's GPU is.", ("host", "device", "name", "uuid")
)
DEVICE_BUSY: Final = _gauge(
    "device_utilization_ratio", "For which part of the time a kernel ran on the GPU.", _DEVICE
)
DEVICE_MEMORY: Final = _gauge("device_memory_bytes", "Memory of the GPU.", _DEVICE)
DEVICE_MEMORY_USED: Final = _gauge("device_memory_used_bytes", "What of it is taken.", _DEVICE)
DEVICE_TEMPERATURE: Final = _gauge(
    "device_temperature_celsius", "The temperature of the GPU.", _DEVICE
)
DEVICE_POWER: Final = _gauge("device_power_watts", "The power that the GPU draws.", _DEVICE)

FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
