"""The Celery client that sends callbacks, chains and chords, always under the same ids.

A job's callbacks may be sent twice, as after a crash, and must then have the same ids. A repeated
job is dropped by its id, and a chord counts its members by the id of its header. `workers/jobs/
canvas.py` names each signature. Celery still draws a random id where it makes a group itself. It
does so for the header of a nested chord, also of one to which it upgrades a chain. So chords are
sent as a type of our own, and such a chain is written with chords before.

Depends on private parts of Celery 5.7.0 and kombu 5.7.0; `tests/unit/workers/canvas/test_sender.py`
fails when the ids differ between two sends.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from celery import Celery
from celery import chord as celery_chord
from celery import group as celery_group
from celery.canvas import Signature as CelerySignature
from kombu import pools as kombu_pools
from typing_extensions import override

from headrace.redis.connection import SOCKET_TIMEOUT_S
from headrace.redis.url import celery_url
from workers.jobs.canvas import Signature, parts

#: The type of our chords, by which Celery finds their class again when it clones them.
_CHORD: Final = "headrace.chord"


@CelerySignature.register_type(name=_CHORD)
class NamedChord(celery_chord):
    """A chord whose header has the chord's id, not a random one; a plain chord in a message."""

    @property  # type: ignore[explicit-override] # it overrides a descriptor
    def subtask_type(self) -> str:
        """The type by which a clone is made."""
        return _CHORD

    @subtask_type.setter
    def subtask_type(self, _: str) -> None:
        self["subtask_type"] = "chord"

    @override
    def freeze(self, *args: Any, **kwargs: Any) -> Any:
        """Give ids to the header and the body, and return the result of the body."""
        header_id = self.options.get("task_id")
        if header_id and not isinstance(self.tasks, celery_group):
            self["kwargs"]["header"] = celery_group(self.tasks, app=self.app, task_id=header_id)
        return super().freeze(*args, **kwargs)


def signature_of(written: Signature, app: Any) -> Any:
    """Return a named signature as an object of Celery's that sends the same ids each time."""
    # Celery, too, changes nested signatures in place.
    signature = copy.deepcopy(written)
    _prepare(signature)
    return CelerySignature.from_dict(signature, app=app)


def _prepare(signature: Signature) -> None:
    kind = signature.get("subtask_type")
    for _, part in parts(signature):
        _prepare(part)
    if kind == "chain":
        signature["kwargs"]["tasks"] = _with_chords(signature["kwargs"]["tasks"])
    elif kind == "chord":
        signature["subtask_type"] = _CHORD


def _with_chords(tasks: list[Signature]) -> list[Signature]:
    """Return the steps of a chain; a group with a step behind it becomes a chord with that body."""
    flat: list[Signature] = []
    for task in tasks:
        nested = task.get("subtask_type") == "chain"
        flat += task["kwargs"]["tasks"] if nested else [task]
    steps: list[Signature] = []
    for task in reversed([task for task in flat if _members(task) != 0] or flat):
        # Celery sends a group with a single task as that task.
        if steps and (_members(task) or 0) > 1:
            header, own = task["kwargs"]["tasks"], task["options"]["task_id"]
            task = {
                "task": "celery.chord",
                "args": [],
                "kwargs": {"header": header, "body": steps.pop(), "kwargs": {}},
                "options": {"task_id": own},
                "subtask_type": _CHORD,
                "immutable": False,
            }
        steps.append(task)
    return steps[::-1]


def _members(task: Signature) -> int | None:
    is_group = task.get("subtask_type") == "group"
    return len(task["kwargs"]["tasks"]) if is_group else None


def canvas_app(redis_url: str, result_ttl_s: int) -> Celery:
    """Return an app of a stock client, apart from the worker's, without tasks and routes."""
    target = celery_url(redis_url)
    app = Celery("headrace-canvas", broker=target.url, backend=target.url, set_as_current=False)
    names = ("unacked_key", "unacked_index_key", "unacked_mutex_key")
    app.conf.update(
        accept_content=["json"],
        broker_connection_timeout=SOCKET_TIMEOUT_S,
        broker_transport_options={
            **{name: f"headrace:canvas.{name}" for name in names},
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            **target.transport_options,
        },
        enable_utc=True,
        redis_socket_timeout=SOCKET_TIMEOUT_S,
        redis_socket_connect_timeout=SOCKET_TIMEOUT_S,
        # The caller retries, so that nothing waits here.
        result_backend_transport_options={
            "retry_policy": {"max_retries": 0},
            **target.transport_options,
        },
        result_expires=result_ttl_s,
        result_serializer="json",
        task_serializer="json",
    )
    # Signatures without an app take the thread's.
    app.set_current()
    # Celery subscribes to the result of each task that it sends; nothing waits for it here.
    backend: Any = app.backend
    backend.on_task_call = lambda producer, task_id: {}
    return app


def close_app(app: Any) -> None:
    """Close the app and its connections."""
    backend = app.backend
    backend.result_consumer.stop()
    # Results unsubscribe when they are collected, and would connect again for it.
    backend.result_consumer._pubsub = None
    backend.client.close()
    # kombu keeps its pools by address, and would give closed pools to the next sender.
    used = (app.producer_pool, app.pool)
    app.pool.force_close_all()
    for pools in (kombu_pools.producers, kombu_pools.connections):
        for address, pool in list(pools.items()):
            if pool in used:
                pools.pop(address, None)
    app.close()
