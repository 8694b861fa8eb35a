"""All checks, in the order of the report. docs/doctor.md lists them; a test holds it to this."""

from __future__ import annotations

from typing import Final

from headrace.doctor import (
    devices,
    durability,
    files,
    fleet,
    host,
    server,
    speed,
    work,
)
from headrace.doctor.finding import Check

CONFIG: Final = "Configuration"
REDIS: Final = "Redis"
WORKERS: Final = "Workers and API"
WORK: Final = "Work"
DEVICES: Final = "Devices"
HOST: Final = "This host"

CHECKS: Final = (
    Check("settings", CONFIG, files.settings),
    Check("models-file", CONFIG, files.models_file),
    Check("handlers", CONFIG, files.handlers),
    Check("weights", CONFIG, files.weights),
    Check("exposure", CONFIG, host.exposure),
    Check("certificate", CONFIG, host.certificate),
    Check("redis", REDIS, server.reach),
    Check("redis-version", REDIS, server.version),
    Check("redis-mode", REDIS, server.mode),
    Check("redis-rights", REDIS, server.rights),
    Check("redis-scripts", REDIS, server.scripting),
    Check("redis-tracking", REDIS, server.tracking),
    Check("redis-persistence", REDIS, durability.persistence),
    Check("redis-writes", REDIS, durability.last_writes),
    Check("redis-eviction", REDIS, durability.eviction),
    Check("redis-memory", REDIS, durability.memory),
    Check("redis-replicas", REDIS, server.replication),
    Check("redis-clients", REDIS, server.connections),
    Check("redis-latency", REDIS, speed.latency),
    Check("redis-slow", REDIS, speed.slow_commands),
    Check("redis-fork", REDIS, speed.fork),
    Check("redis-keys", REDIS, speed.strays),
    Check("redis-disk", REDIS, durability.disk),
    Check("redis-host", REDIS, durability.host),
    Check("workers", WORKERS, fleet.workers),
    Check("models", WORKERS, work.served_models),
    Check("worker-versions", WORKERS, fleet.worker_versions),
    Check("clocks", WORKERS, fleet.clocks),
    Check("api", WORKERS, fleet.api_or_why),
    Check("worker-answers", WORKERS, fleet.answers, limit_s=60, beside=True),
    Check("queues", WORK, work.queues),
    Check("backlog", WORK, work.backlog),
    Check("dead-letters", WORK, work.dead_letters),
    Check("unknown-queues", WORK, work.unknown_queues),
    Check("errands", WORK, work.errands),
    Check("batches", WORK, work.batches),
    Check("gpus", DEVICES, devices.gpus, limit_s=30),
    Check("gpu-use", DEVICES, devices.gpu_use, limit_s=30),
    Check("threads", DEVICES, devices.threads),
    Check("torch", DEVICES, devices.torch, limit_s=120, beside=True),
    Check("payload-store", HOST, files.payload_store, limit_s=30),
    Check("state-dir", HOST, files.state_dir),
    Check("disks", HOST, files.disks),
    Check("open-files", HOST, host.open_files),
    Check("versions", HOST, host.versions),
)
