"""All checks, in the order of the report. A test compares docs/doctor.md with this list."""

from __future__ import annotations

from typing import Final

from headrace.cli.doctor import (
    configuration,
    gpus,
    host,
    queues,
    redis_durability,
    redis_latency,
    redis_server,
    workers,
)
from headrace.cli.doctor.check import Check

CONFIG: Final = "Configuration"
REDIS: Final = "Redis"
WORKERS: Final = "Workers and API"
WORK: Final = "Work"
DEVICES: Final = "Devices"
HOST: Final = "This host"

CHECKS: Final = (
    Check("settings", CONFIG, configuration.settings),
    Check("models-file", CONFIG, configuration.models_file),
    Check("handlers", CONFIG, configuration.handlers),
    Check("weights", CONFIG, configuration.weights),
    Check("exposure", CONFIG, host.exposure),
    Check("certificate", CONFIG, host.certificate),
    Check("redis", REDIS, redis_server.reach),
    Check("redis-version", REDIS, redis_server.version),
    Check("redis-mode", REDIS, redis_server.mode),
    Check("redis-rights", REDIS, redis_server.rights),
    Check("redis-scripts", REDIS, redis_server.scripting),
    Check("redis-tracking", REDIS, redis_server.tracking),
    Check("redis-persistence", REDIS, redis_durability.persistence),
    Check("redis-writes", REDIS, redis_durability.last_writes),
    Check("redis-eviction", REDIS, redis_durability.eviction),
    Check("redis-memory", REDIS, redis_durability.memory),
    Check("redis-replicas", REDIS, redis_server.replication),
    Check("redis-clients", REDIS, redis_server.connections),
    Check("redis-latency", REDIS, redis_latency.latency),
    Check("redis-slow", REDIS, redis_latency.slow_commands),
    Check("redis-fork", REDIS, redis_latency.fork),
    Check("redis-keys", REDIS, redis_latency.strays),
    Check("redis-disk", REDIS, redis_durability.disk),
    Check("redis-host", REDIS, redis_durability.host),
    Check("workers", WORKERS, workers.workers),
    Check("models", WORKERS, queues.served_models),
    Check("worker-versions", WORKERS, workers.worker_versions),
    Check("clocks", WORKERS, workers.clocks),
    Check("api", WORKERS, workers.api),
    Check("worker-answers", WORKERS, workers.answers, limit_s=60, background=True),
    Check("queues", WORK, queues.queues),
    Check("backlog", WORK, queues.backlog),
    Check("dead-letters", WORK, queues.dead_letters),
    Check("unknown-queues", WORK, queues.unknown_queues),
    Check("errands", WORK, queues.background_tasks),
    Check("batches", WORK, queues.batches),
    Check("gpus", DEVICES, gpus.gpus, limit_s=30),
    Check("gpu-use", DEVICES, gpus.gpu_use, limit_s=30),
    Check("threads", DEVICES, gpus.threads),
    Check("torch", DEVICES, gpus.torch, limit_s=120, background=True),
    Check("payload-store", HOST, configuration.payload_store, limit_s=30),
    Check("state-dir", HOST, configuration.state_dir),
    Check("disks", HOST, configuration.disks),
    Check("open-files", HOST, host.open_files),
    Check("versions", HOST, host.versions),
)
