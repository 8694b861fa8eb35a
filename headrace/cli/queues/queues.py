"""`headrace queues`, and `headrace queues pause`, `resume` and `purge`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.shared import output
from headrace.cli.shared.confirm import confirm
from headrace.config.suggestions import did_you_mean
from headrace.errors import QueueNotFound

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client.models import Queue


def list_queues(url: str | None, *, as_json: bool) -> None:
    """Print the queues with their waiting and running jobs."""
    from headrace import Client

    with Client(url) as client:
        queues = client.queues()
    if as_json:
        for queue in queues:
            output.json_line(queue)
        return
    output.table(
        ("QUEUE", ">WAITING", ">OLDEST", ">RUNNING", ">SCHEDULED", ">DEAD", ">FREE", ""),
        [_row(queue) for queue in queues],
    )


def pause_queues(url: str | None, models: Sequence[str], *, paused: bool, as_json: bool) -> None:
    """Pause or resume queues.

    Raises:
        QueueNotFound: a queue does not exist; nothing was changed.
    """
    from headrace import Client

    with Client(url) as client:
        change = client.pause_queue if paused else client.resume_queue
        for queue in _named(client, models):
            change(queue)
            if as_json:
                output.json_line({"name": queue.name, "model": queue.model, "paused": paused})
            else:
                output.line(f"{queue.name}  {'paused' if paused else 'resumed'}")


def purge(url: str | None, models: Sequence[str], *, yes: bool, as_json: bool) -> None:
    """Cancel the waiting and scheduled jobs of queues.

    Raises:
        QueueNotFound: a queue does not exist; nothing was changed.
    """
    from headrace import Client

    with Client(url) as client:
        queues = _named(client, models)
        confirm(lambda: _question(queues), yes=yes)
        for queue in queues:
            cancelled = client.purge_queue(queue)
            if as_json:
                counts = {"name": queue.name, "model": queue.model, "cancelled": cancelled}
                output.json_line(counts)
            else:
                output.line(f"{queue.name}  {cancelled:,} cancelled")


def _named(client: Client, names: Sequence[str]) -> list[Queue]:
    """Return the queues with these names or of these models, without duplicates."""
    queues = client.queues()
    by_name = {queue.name: queue for queue in queues} | {queue.model: queue for queue in queues}
    for name in names:
        if name not in by_name:
            models = [queue.model for queue in queues]
            raise QueueNotFound(
                f"no model {name}{did_you_mean(name, models)}",
                hint="`headrace queues` lists the queues",
            )
    return list({by_name[name].name: by_name[name] for name in names}.values())


def _question(queues: Sequence[Queue]) -> str:
    count = sum(_waiting(queue) + queue.scheduled for queue in queues)
    names = ", ".join(queue.name for queue in queues)
    return (
        f"cancel all waiting and scheduled jobs of {names} ({output.count(count, 'job')})?"
        if count
        else ""
    )


def _row(queue: Queue) -> tuple[str, ...]:
    waiting = _waiting(queue)
    oldest = "" if queue.oldest_age_s is None else output.duration(queue.oldest_age_s)
    room = max(queue.max_queue_depth - waiting, 0)
    counts = (queue.in_flight, queue.scheduled, queue.dead_letters, room)
    numbers = (f"{count:,}" for count in counts)
    return (queue.name, f"{waiting:,}", oldest, *numbers, "paused" if queue.paused else "")


def _waiting(queue: Queue) -> int:
    return sum(queue.depth.values())
