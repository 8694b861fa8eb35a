"""`headrace queues`: lists the queues, and pauses, resumes and purges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.options import argument, client_of
from headrace.config.suggestions import did_you_mean
from headrace.errors import QueueNotFound
from headrace.redis import keys
from headrace.text import count, duration

if TYPE_CHECKING:
    from headrace import Client
    from headrace.schema.operation import Queue, VersionQueue

queues_group: Final = typer.Typer(rich_markup_mode=None)

ModelsArgument = Annotated[
    list[str],
    argument("MODEL", "Models whose queues to change.", ..., autocompletion=options.complete_model),
]
_COLUMNS: Final = (
    "QUEUE", ">WAITING", ">OLDEST", ">LEASED", ">SCHEDULED", ">DEAD", ">FREE", "?>TOKENS", "",
)  # fmt: skip


@queues_group.callback(invoke_without_command=True)
def queues(ctx: typer.Context, as_json: options.Json = False, url: options.Url = None) -> None:
    """List the queues: waiting jobs, leased jobs, free room; or change a queue."""
    if ctx.invoked_subcommand is not None:
        options.refuse_before_subcommand(ctx)
        return
    with client_of(url) as client:
        queues = client.queues()
        if as_json:
            for queue in queues:
                output.json_line(queue)
            return
        output.table(_COLUMNS, [row for queue in queues for row in _rows(queue)])


@queues_group.command()
def pause(models: ModelsArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Stop workers from claiming jobs; submits are still accepted, running jobs continue."""
    _set_paused(url, models, paused=True, as_json=as_json)


@queues_group.command()
def resume(models: ModelsArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Let workers claim jobs again."""
    _set_paused(url, models, paused=False, as_json=as_json)


def _set_paused(url: str | None, models: Sequence[str], *, paused: bool, as_json: bool) -> None:
    with client_of(url) as client:
        change = client.pause_queue if paused else client.resume_queue
        for queue in _named(client, models):
            change(queue)
            text = "paused" if paused else "resumed"
            _print_change(queue, text, {"paused": paused}, as_json=as_json)


@queues_group.command()
def purge(
    models: ModelsArgument,
    yes: options.Yes = False,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Cancel all waiting and scheduled jobs of queues; running jobs continue."""
    with client_of(url) as client:
        queues = _named(client, models)
        output.confirm(lambda: _question(queues), yes=yes)
        for queue in queues:
            count = client.purge_queue(queue)
            _print_change(queue, f"{count:,} cancelled", {"cancelled": count}, as_json=as_json)


def _named(client: Client, names: Sequence[str]) -> list[Queue | VersionQueue]:
    """Return the queues with these names, each once; raise QueueNotFound if one does not exist."""
    queues = client.queues()
    by_name: dict[str, Queue | VersionQueue] = {}
    for queue in queues:
        both: list[Queue | VersionQueue] = [queue, *queue.versions]
        for one in both:
            by_name |= {one.name: one, one.name.removeprefix(keys.queue_name): one}
    for name in names:
        if name not in by_name:
            raise QueueNotFound(
                f"no model {name}{did_you_mean(name, [queue.model for queue in queues])}",
                hint="`headrace queues` lists the queues",
            )
    return list({by_name[name].name: by_name[name] for name in names}.values())


def _print_change(
    queue: Queue | VersionQueue, text: str, facts: dict[str, object], *, as_json: bool
) -> None:
    model, version = keys.model_of(queue.name)
    asked = {"version": version} if version else {}
    value = {"name": queue.name, "model": model, **asked, **facts}
    output.item(value, f"{queue.name}  {text}", as_json=as_json)


def _question(queues: Sequence[Queue | VersionQueue]) -> str:
    """Return the question; empty if no jobs wait."""
    jobs = sum(_waiting(queue) + queue.scheduled for queue in queues)
    if not jobs:
        return ""
    names = ", ".join(queue.name for queue in queues)
    return f"cancel all waiting and scheduled jobs of {names} ({count(jobs, 'job')})?"


def _rows(queue: Queue) -> list[tuple[str, ...]]:
    """Return the row of a model's queue, which includes the rows below of its versions."""
    of_versions = sum(_waiting(one) for one in queue.versions)
    rows = [_row(queue, queue.max_queue_depth + of_versions, queue.tokens)]
    return [*rows, *(_row(one, queue.max_queue_depth) for one in queue.versions)]


def _row(queue: Queue | VersionQueue, most: int, tokens: int | None = None) -> tuple[str, ...]:
    waiting = _waiting(queue)
    oldest = "" if queue.oldest_age_s is None else duration(queue.oldest_age_s)
    counts = (queue.in_flight, queue.scheduled, queue.dead_letters, max(most - waiting, 0))
    numbers = (f"{count:,}" for count in counts)
    shown = "" if tokens is None else f"{tokens:,}"
    return (queue.name, f"{waiting:,}", oldest, *numbers, shown, "paused" if queue.paused else "")


def _waiting(queue: Queue | VersionQueue) -> int:
    return sum(queue.depth.values())
