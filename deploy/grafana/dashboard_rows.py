"""The rows of the dashboard: what its panels ask of Prometheus. `build.py` makes them Grafana's."""

from __future__ import annotations

from typing import Final

#: Of the models that were chosen.
M: Final = 'model=~"$model"'
RATE: Final = "[$__rate_interval]"


def quantile(q: float, name: str) -> str:
    """A quantile of a histogram by model."""
    buckets = f"rate(headrace_{name}_bucket{{{M}}}{RATE})"
    return f"histogram_quantile({q}, sum by (model, le) ({buckets}))"


def rate(name: str, by: str, where: str = "") -> str:
    """A counter's rate by some of its labels."""
    return f"sum by ({by}) (rate(headrace_{name}_total{{{M}{where}}}{RATE}))"


def within(name: str, where: str = "") -> str:
    """What a counter has counted by model, in the time that the dashboard shows."""
    return f"sum by (model) (increase(headrace_{name}_total{{{M}{where}}}[$__range]))"


#: The tiles: title, unit, what it says, a query of one value, the words for values, and from which
#: values on it is orange and red. The bounds of the alerts, where there is one.
Bounds = dict[str, float]
Tile = tuple[str, str, str, str, dict[str, str], Bounds]
TILES: Final[list[Tile]] = [
    (
        "Is Redis up?",
        "short",
        "Whether Redis answers the API.",
        "min(headrace_broker_up)",
        {"0": "away", "1": "up"},
        {"red": 0, "green": 1},
    ),
    (
        "Workers",
        "short",
        "Workers that are alive.",
        "max(headrace_workers)",
        {},
        {"red": 0, "green": 1},
    ),
    (
        "Models without a replica",
        "short",
        "Models that should be loaded, and of which no process is.",
        f"count(headrace_model_ready_replicas{{{M}}} == 0) or vector(0)",
        {},
        {"green": 0, "red": 1},
    ),
    (
        "Waiting jobs",
        "short",
        "Of all models and priorities.",
        f"sum(headrace_queue_depth{{{M}}})",
        {},
        {"text": 0},
    ),
    (
        "The oldest online job",
        "s",
        "How long it has waited.",
        f'max(headrace_queue_oldest_age_seconds{{{M},priority!="9"}})',
        {},
        {"green": 0, "orange": 60, "red": 300},
    ),
    (
        "Ended jobs",
        "ops",
        "Each second, however they ended.",
        f"sum(rate(headrace_jobs_ended_total{{{M}}}{RATE}))",
        {},
        {"text": 0},
    ),
    (
        "From submit to answer, p99",
        "s",
        "Of jobs that ran, with their wait.",
        f"histogram_quantile(0.99, sum by (le) (rate(headrace_job_seconds_bucket{{{M}}}{RATE})))",
        {},
        {"text": 0},
    ),
    (
        "Error ratio",
        "percentunit",
        "Failed and expired of all but the cancelled.",
        f'sum(rate(headrace_jobs_ended_total{{{M},status=~"failed|expired"}}{RATE})) / '
        f'sum(rate(headrace_jobs_ended_total{{{M},status!="cancelled"}}{RATE}))',
        {},
        {"green": 0, "orange": 0.01, "red": 0.05},
    ),
]

#: The columns of the table of failures, each a query by model.
FAILURES: Final[dict[str, str]] = {
    "failed": within("jobs_ended", ',status="failed"'),
    "expired": within("jobs_ended", ',status="expired"'),
    "retried": within("jobs_retried"),
    "refused": within("jobs_rejected"),
    "new dead letters": within("jobs_dead"),
    "dead letters": f"sum by (model) (headrace_dead_letters{{{M}}})",
    "processes lost": within("model_restarts", ',reason="lost"'),
    "not loaded": within("model_load_failures"),
    "leases lost": within("lease_losses"),
}

#: Per row its question, and its panels: title, unit, what it says, and queries with their legends.
Query = tuple[str, str]
Panel = tuple[str, str, str, list[Query]]
ROWS: Final[list[tuple[str, list[Panel]]]] = [
    (
        "Is it keeping up?",
        [
            (
                "Jobs that wait",
                "short",
                "By model and priority; 9 is offline work.",
                [
                    (
                        f"sum by (model, priority) (headrace_queue_depth{{{M}}})",
                        "{{model}} {{priority}}",
                    )
                ],
            ),
            (
                "Tokens that wait or run",
                "short",
                "An estimate, of models with a schedule by tokens.",
                [(f"sum by (model) (headrace_queue_tokens{{{M}}})", "{{model}}")],
            ),
            (
                "Demand",
                "short",
                "Jobs that wait, are due, or run.",
                [(f"sum by (model) (headrace_demand_jobs{{{M}}})", "{{model}}")],
            ),
            (
                "Demand in time",
                "s",
                "How long one replica would run for it, by the batches so far.",
                [(f"sum by (model) (headrace_demand_seconds{{{M}}})", "{{model}}")],
            ),
            (
                "The oldest of them",
                "s",
                "How long the oldest waiting job has waited.",
                [
                    (
                        f"max by (model, priority) (headrace_queue_oldest_age_seconds{{{M}}})",
                        "{{model}} {{priority}}",
                    )
                ],
            ),
            (
                "Jobs in and out",
                "ops",
                "Admitted over HTTP, and ended, each second.",
                [
                    (rate("jobs_admitted", "model"), "{{model}} in"),
                    (rate("version_jobs_admitted", "model, version"), "{{model}}@{{version}} in"),
                    (rate("jobs_ended", "model"), "{{model}} out"),
                ],
            ),
            (
                "From submit to answer",
                "s",
                "Median and 99th percentile of jobs that ran, with their wait.",
                [
                    (quantile(0.5, "job_seconds"), "{{model}} p50"),
                    (quantile(0.99, "job_seconds"), "{{model}} p99"),
                ],
            ),
            (
                "Where a job waits, p95",
                "s",
                "In the queue until its claim; in its worker, for its batch and for the device.",
                [
                    (quantile(0.95, "queue_seconds"), "{{model}} queue"),
                    (quantile(0.95, "hold_seconds"), "{{model}} hold"),
                    (quantile(0.95, "device_wait_seconds"), "{{model}} device"),
                ],
            ),
            (
                "Held, put off, waited for",
                "short",
                "Jobs that workers hold, jobs that are due later, and requests that wait.",
                [
                    (f"sum by (model) (headrace_jobs_in_flight{{{M}}})", "{{model}} held"),
                    (f"sum by (model) (headrace_jobs_scheduled{{{M}}})", "{{model}} put off"),
                    ("headrace_requests_waiting", "requests"),
                ],
            ),
        ],
    ),
    (
        "Is it healthy?",
        [
            (
                "Redis, workers",
                "short",
                "Whether Redis answers, and how many workers are alive.",
                [("headrace_broker_up", "Redis"), ("headrace_workers", "workers")],
            ),
            (
                "Replicas",
                "short",
                "Loaded, and those that there are to be.",
                [
                    (f"sum by (model) (headrace_model_ready_replicas{{{M}}})", "{{model}} ready"),
                    (f"sum by (model) (headrace_model_replicas{{{M}}})", "{{model}} wanted"),
                ],
            ),
            (
                "Model processes replaced",
                "short",
                "In five minutes: killed or dead (lost), by plan (recycled), or not loaded.",
                [
                    (
                        "sum by (model, reason) "
                        f"(increase(headrace_model_restarts_total{{{M}}}[5m]))",
                        "{{model}} {{reason}}",
                    ),
                    (
                        f"sum by (model) (increase(headrace_model_load_failures_total{{{M}}}[5m]))",
                        "{{model}} not loaded",
                    ),
                ],
            ),
            (
                "What a load took",
                "s",
                "The average since the first.",
                [
                    (
                        f"headrace_model_load_seconds_sum{{{M}}} / "
                        f"(headrace_model_load_seconds_count{{{M}}} > 0)",
                        "{{model}}",
                    )
                ],
            ),
            (
                "Leases",
                "ops",
                "Renewed, and run out, each second.",
                [
                    (rate("lease_renewals", "model"), "{{model}} renewed"),
                    (rate("lease_losses", "model"), "{{model}} lost"),
                ],
            ),
            (
                "Requests to the API",
                "reqps",
                "By route and status.",
                [
                    (
                        f"sum by (route, code) (rate(headrace_api_requests_total{RATE}))",
                        "{{code}} {{route}}",
                    )
                ],
            ),
            (
                "Redis",
                "ops",
                "Round trips and errors each second, of the API and of the workers.",
                [
                    (
                        f"sum by (part) (rate(headrace_redis_round_trips_total{RATE}))",
                        "{{part}} round trips",
                    ),
                    (f"sum by (part) (rate(headrace_redis_errors_total{RATE}))", "{{part}} errors"),
                ],
            ),
            (
                "Webhooks",
                "ops",
                "Tries each second, by what came of them.",
                [
                    (
                        f"sum by (outcome) (rate(headrace_webhook_tries_total{RATE}))",
                        "{{outcome}}",
                    )
                ],
            ),
            (
                "Background tasks that wait",
                "short",
                "For a background worker, and webhooks for another try.",
                [
                    ("headrace_background_tasks_waiting", "background tasks"),
                    ("headrace_webhooks_pending", "webhooks"),
                ],
            ),
            (
                "Memory of Redis",
                "bytes",
                "What it uses, and its maxmemory (0: none). At that it takes no new jobs.",
                [
                    ("max(headrace_redis_memory_used_bytes)", "used"),
                    ("max(headrace_redis_memory_max_bytes)", "maxmemory"),
                ],
            ),
            (
                "Versions",
                "short",
                "Of the API process that was scraped.",
                [("headrace_build_info", "{{version}}")],
            ),
        ],
    ),
    (
        "How fast does it generate?",
        [
            (
                "The first token",
                "s",
                "From the submit to the first piece: median and 99th percentile, online jobs.",
                [
                    (quantile(0.5, "time_to_first_token_seconds"), "{{model}} p50"),
                    (quantile(0.99, "time_to_first_token_seconds"), "{{model}} p99"),
                ],
            ),
            (
                "Between two tokens",
                "s",
                "Of one answer: median and 99th percentile.",
                [
                    (quantile(0.5, "time_per_output_token_seconds"), "{{model}} p50"),
                    (quantile(0.99, "time_per_output_token_seconds"), "{{model}} p99"),
                ],
            ),
            (
                "Tokens in and out",
                "ops",
                "Each second, of requests that have ended.",
                [
                    (rate("prompt_tokens", "model"), "{{model}} in"),
                    (rate("prompt_tokens_cached", "model"), "{{model}} in, cached"),
                    (rate("generation_tokens", "model"), "{{model}} out"),
                ],
            ),
            (
                "Requests that run",
                "short",
                "In all generators of a model.",
                [(f"sum by (model) (headrace_generator_requests{{{M}}})", "{{model}}")],
            ),
            (
                "Cache in use",
                "percentunit",
                "Tokens that the running requests take, of those that the caches have room for.",
                [
                    (
                        f"sum by (model) (headrace_generator_cache_used_tokens{{{M}}}) / "
                        f"(sum by (model) (headrace_generator_cache_tokens{{{M}}}) > 0)",
                        "{{model}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Is the device busy?",
        [
            (
                "GPUs at work",
                "percentunit",
                "For which part of the time a kernel ran.",
                [("headrace_device_utilization_ratio", "{{host}} {{device}}")],
            ),
            (
                "GPU memory",
                "bytes",
                "Taken, by whomever, and all.",
                [
                    ("headrace_device_memory_used_bytes", "{{host}} {{device}}"),
                    ("headrace_device_memory_bytes", "{{host}} {{device}} all"),
                ],
            ),
            (
                "GPU temperature",
                "celsius",
                "As the driver tells.",
                [("headrace_device_temperature_celsius", "{{host}} {{device}}")],
            ),
            (
                "GPU power",
                "watt",
                "As the driver tells.",
                [("headrace_device_power_watts", "{{host}} {{device}}")],
            ),
            (
                "Jobs per batch",
                "short",
                "The average, and how many inputs were added to a batch to reach an allowed size.",
                [
                    (
                        f"sum by (model) (rate(headrace_batch_size_sum{{{M}}}{RATE})) / "
                        f"sum by (model) (rate(headrace_batch_size_count{{{M}}}{RATE}))",
                        "{{model}}",
                    ),
                    (
                        f"sum by (model) (rate(headrace_batch_padding_total{{{M}}}{RATE})) / "
                        f"sum by (model) (rate(headrace_batch_size_count{{{M}}}{RATE}))",
                        "{{model}} padding",
                    ),
                ],
            ),
            (
                "Why batches left",
                "ops",
                "Each second, by reason.",
                [(rate("batches", "model, reason"), "{{model}} {{reason}}")],
            ),
            (
                "Devices that wait for preprocess",
                "percentunit",
                "Which part of a second a device stood idle for that.",
                [(rate("device_starved_seconds", "model"), "{{model}}")],
            ),
            (
                "Hosts: CPU",
                "percentunit",
                "Which part of the processors was busy.",
                [("headrace_host_cpu_ratio", "{{host}}")],
            ),
            (
                "Hosts: memory and disk in use",
                "percentunit",
                "Of what there is.",
                [
                    (
                        "1 - headrace_host_memory_available_bytes / headrace_host_memory_bytes",
                        "{{host}} memory",
                    ),
                    (
                        "1 - headrace_host_disk_available_bytes / headrace_host_disk_bytes",
                        "{{host}} disk",
                    ),
                ],
            ),
        ],
    ),
    (
        "Which model?",
        [
            (
                "Jobs that ended",
                "ops",
                "Each second, by model and status.",
                [(rate("jobs_ended", "model, status"), "{{model}} {{status}}")],
            ),
            (
                "Time in the handler",
                "percentunit",
                "Seconds of inference in each second: more than 1 with several replicas.",
                [
                    (
                        f"sum by (model) (rate(headrace_inference_seconds_sum{{{M}}}{RATE}))",
                        "{{model}}",
                    )
                ],
            ),
            (
                "The verbs of a batch, p95",
                "s",
                "What preprocess, inference and postprocess take.",
                [
                    (quantile(0.95, "preprocess_seconds"), "{{model}} preprocess"),
                    (quantile(0.95, "inference_seconds"), "{{model}} inference"),
                    (quantile(0.95, "postprocess_seconds"), "{{model}} postprocess"),
                ],
            ),
            (
                "Memory of its processes",
                "bytes",
                "Resident, by worker.",
                [
                    (
                        f"sum by (model, worker) (headrace_model_memory_bytes{{{M}}})",
                        "{{model}} {{worker}}",
                    )
                ],
            ),
        ],
    ),
    (
        "What failed?",
        [
            (
                "Errors among what ended",
                "percentunit",
                "Failed and expired of all but the cancelled, as the alert has it.",
                [
                    (
                        rate("jobs_ended", "model", ',status=~"failed|expired"')
                        + " / "
                        + rate("jobs_ended", "model", ',status!="cancelled"'),
                        "{{model}}",
                    )
                ],
            ),
            (
                "Failed, expired, cancelled",
                "ops",
                "Each second.",
                [
                    (
                        rate("jobs_ended", "model, status", ',status!="succeeded"'),
                        "{{model}} {{status}}",
                    )
                ],
            ),
            (
                "Tried again",
                "ops",
                "Each second.",
                [(rate("jobs_retried", "model"), "{{model}}")],
            ),
            (
                "Dead letters",
                "short",
                "Those that are there, and how many came in ten minutes.",
                [
                    (f"sum by (model) (headrace_dead_letters{{{M}}})", "{{model}}"),
                    (
                        f"sum by (model) (increase(headrace_jobs_dead_total{{{M}}}[10m]))",
                        "{{model}} new",
                    ),
                ],
            ),
            (
                "Submits refused",
                "ops",
                "Each second, by the code of the problem.",
                [(rate("jobs_rejected", "model, reason"), "{{model}} {{reason}}")],
            ),
            (
                "Paused queues",
                "short",
                "1 while nothing is claimed.",
                [(f"headrace_queue_paused{{{M}}}", "{{model}}")],
            ),
        ],
    ),
]
