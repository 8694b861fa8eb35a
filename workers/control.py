"""Remote control: what `celery inspect` and Flower ask, answered truly for our queues too."""

from __future__ import annotations

from typing import Any

from celery.worker.control import Panel, inspect_command


def install() -> None:
    """Replace Celery's `active_queues`.

    Handing our queues to Celery's own consumer would make it pop from them, message by message; so they
    are only named here, and Flower then shows their true lengths.
    """
    stock = Panel.data["active_queues"]

    def active_queues(state: Any) -> list[dict[str, Any]]:
        """List the task queues that this worker consumes from."""
        queues = list(stock(state))
        consumer = getattr(state.consumer.controller, "headrace", None)
        if consumer is not None:
            queues += [_described(lane.queue) for lane in consumer.lanes]
        return queues

    inspect_command()(active_queues)


def _described(queue: str) -> dict[str, Any]:
    return {
        "name": queue,
        "exchange": {"name": "", "type": "direct", "durable": True, "auto_delete": False},
        "routing_key": queue,
        "durable": True,
        "exclusive": False,
        "auto_delete": False,
        "no_ack": False,
        "alias": None,
        "bindings": [],
        "queue_arguments": None,
        "binding_arguments": None,
        "consumer_arguments": None,
        "expires": None,
        "message_ttl": None,
        "max_length": None,
        "max_length_bytes": None,
        "max_priority": None,
    }
