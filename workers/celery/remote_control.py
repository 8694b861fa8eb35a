"""Remote control: the replies to `celery inspect`, `celery control` and Flower.

The replies include our jobs, which are not in Celery's own sets of requests. Celery's main thread
iterates over these sets without a lock, and expects requests of its own in them. After a lost
connection it sets attributes on each. So the consumer's thread must not change them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from celery.worker import state as celery_state
from kombu import Queue
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import RedisError

from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.script_client import call_script
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts import pages_of
from workers.celery import celery_internals
from workers.celery.celery_internals import Command
from workers.celery.config import refuse
from workers.consumer.loop import Consumer
from workers.jobs.leased_job import LeasedJob
from workers.models.served_model import ServedModel

#: The most ids that a call of jobs/cancel.lua takes.
CANCEL_MAX_JOBS: Final = 128

_REPLICAS: Final = (
    "a worker's pool cannot change: set a model's `replicas` in the models file and restart the "
    "worker"
)
#: Commands that do not work on our workers, with what to do instead.
REFUSED: Final = {
    "pool_grow": _REPLICAS,
    "pool_shrink": _REPLICAS,
    "autoscale": _REPLICAS,
    "pool_restart": "a worker's pool cannot restart: restart the worker, which returns its jobs to "
    "their queues; `max_jobs` in the models file recycles a model's processes",
    "rate_limit": "models have no rate limit. `max_batch_size` and `replicas` in the models file "
    "limit what runs at once; the rate of an API key limits what its client submits",
    "time_limit": "models have no time limit that can change while they run. Set `timeout_s` in "
    "the models file, or a job's own timeout; there is no soft limit",
}

_stock: Final = celery_internals.stock_commands()


def install(redis_url: str, control_queue: str) -> None:
    """Replace Celery's commands by ours, which cancel revoked jobs in this Redis."""
    revoke = _revoke_command(redis_url)
    commands: dict[str, Command] = {
        "active": _active,
        "dump_active": _active,
        "reserved": _reserved,
        "dump_reserved": _reserved,
        "query_task": _query_task,
        "active_queues": _active_queues,
        "stats": _stats,
        "revoke": revoke,
        "terminate": lambda state, signal, task_id, **_: revoke(state, task_id),
        "add_consumer": _own_queue_only("add_consumer", control_queue),
        "cancel_consumer": _own_queue_only("cancel_consumer", control_queue),
    }
    celery_internals.set_commands(commands)
    refuse(REFUSED)


def count_active(consumer: Consumer) -> None:
    """Count the running jobs in Celery's heartbeats, which Flower shows per worker."""
    celery_internals.count_active(lambda: sum(1 for _ in _running(consumer)))


def _consumer(state: Any) -> Consumer | None:
    consumer: Consumer | None = getattr(state.consumer.controller, "headrace", None)
    return consumer


def _models(state: Any) -> list[ServedModel]:
    consumer = _consumer(state)
    return consumer.models if consumer is not None else []


def _running(consumer: Consumer) -> Iterator[tuple[ServedModel, LeasedJob, int | None]]:
    """Yield running jobs with the pid of their process; another thread changes them meanwhile."""
    for model in consumer.models:
        for replica in model.replicas:
            process = replica.process
            pid = process.pid if process is not None else None
            for batch in replica.batches:
                yield from ((model, job, pid) for job in batch.jobs)


def _info(state: Any, model: ServedModel, job: LeasedJob, pid: int | None = None) -> dict[str, Any]:
    return {
        **job.info(),
        "hostname": state.hostname,
        "worker_pid": pid,
        "delivery_info": {
            "exchange": "",
            "routing_key": model.queue_of(job),
            "redelivered": job.attempts > 1,
        },
    }


def _running_info(state: Any) -> list[dict[str, Any]]:
    consumer = _consumer(state)
    running = _running(consumer) if consumer is not None else ()
    return [_info(state, model, job, pid) for model, job, pid in running]


def _prepared_info(state: Any) -> list[dict[str, Any]]:
    """Describe the jobs that are claimed and not running, which Celery calls reserved."""
    held = [(model, job) for model in _models(state) for job in list(model.held)]
    return [_info(state, model, job) for model, job in held if not job.dispatched_at]


def _active(state: Any, safe: bool = False, **_: Any) -> list[dict[str, Any]]:
    return [*_stock["active"](state, safe=safe), *_running_info(state)]


def _reserved(state: Any, **_: Any) -> list[dict[str, Any]]:
    return [*_stock["reserved"](state), *_prepared_info(state)]


def _query_task(state: Any, ids: str | Sequence[str], **_: Any) -> dict[str, Any]:
    wanted = set(_listed(ids))
    tasks = dict(_stock["query_task"](state, list(wanted)))
    for word, infos in (("reserved", _prepared_info), ("active", _running_info)):
        tasks |= {info["id"]: (word, info) for info in infos(state) if info["id"] in wanted}
    return tasks


def _active_queues(state: Any) -> list[dict[str, Any]]:
    # Only the names, with which Flower shows the queues' lengths. If Celery's own consumer had the
    # queues, it would pop their messages.
    names = dict.fromkeys(name for model in _models(state) for name in _queue_names(model))
    queues = [Queue(name, routing_key=name) for name in names]
    described = [dict(queue.as_dict(recurse=True)) for queue in queues]
    return [*_stock["active_queues"](state), *described]


def _queue_names(model: ServedModel) -> list[str]:
    """Return the queues of a model from which it claims; of a version's queue, if it has had jobs.

    A model has as many of these as it has versions, and most of them never have a job.
    """
    own, version = model.queues
    closed = model.own_closed
    return [*([] if closed else [own]), *([version] if closed or model.versioned else [])]


def _stats(state: Any, **_: Any) -> dict[str, Any]:
    stats: dict[str, Any] = _stock["stats"](state)
    broker = stats.get("broker")
    if isinstance(broker, dict):
        # kombu takes a socket's URL as the host name, and a Sentinel's password is an option.
        broker["hostname"] = maybe_sanitize_url(str(broker.get("hostname", "")))
        options = broker.get("transport_options") or {}
        hidden = ("sentinel_kwargs", "credential_provider")
        broker["transport_options"] = {k: v for k, v in options.items() if k not in hidden}
    return stats


def _revoke_command(redis_url: str) -> Command:
    def revoke(state: Any, task_id: str | Sequence[str], **_: Any) -> dict[str, str]:
        ids = _listed(task_id)
        try:
            answers = _cancelled(redis_url, ids)
        except (RedisError, OSError) as error:
            return {"error": f"not revoked, Redis does not answer: {error}"}
        # A job without a record may wait in a queue as a stock client's message, or arrive so.
        # The script remembers it for the claim; this set is for `inspect revoked`.
        celery_state.revoked.update(
            [job_id for job_id, answer in answers.items() if answer == "unknown"]
        )
        dispatcher = state.consumer.event_dispatcher
        for job_id, answer in answers.items():
            if answer == "removed" and dispatcher is not None:
                dispatcher.send(
                    "task-revoked", uuid=job_id, name=keys.TASK_NAME, terminated=False,
                    signum=None, expired=False,
                )  # fmt: skip
        return {"ok": ", ".join(f"{job_id}: {answer}" for job_id, answer in answers.items())}

    return revoke


def _cancelled(redis_url: str, ids: list[str]) -> dict[str, str]:
    """Return the reply of jobs/cancel.lua for each id: unknown, removed, asked (it runs), ended."""
    answers: dict[str, str] = {}
    with connect(redis_url) as client:
        for page in pages_of(ids, CANCEL_MAX_JOBS):
            cancel = job_scripts.cancel(page, remember_s=keys.REVOKED_TTL_S)
            words = job_scripts.read_words(call_script(client, cancel))
            answers |= dict(zip(page, words, strict=True))
    return answers


def _own_queue_only(name: str, own: str) -> Command:
    def command(state: Any, queue: str, *args: Any, **options: Any) -> Any:
        if queue.startswith(keys.queue_name):
            why = f"{queue} is a model's queue: the models file defines what a worker serves"
            return {"error": why}
        if queue != own:
            # It would take messages of unknown tasks, which loses them.
            why = f"a Headrace worker does not take {queue}: use a Celery worker of your own"
            return {"error": why}
        return _stock[name](state, queue, *args, **options)

    return command


def _listed(ids: str | Sequence[str]) -> list[str]:
    return [ids] if isinstance(ids, str) else list(ids)
