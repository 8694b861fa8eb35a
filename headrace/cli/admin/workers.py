"""`headrace workers`: lists the workers, drains one, and lets it claim again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.options import argument, client_of
from headrace.text import ago

if TYPE_CHECKING:
    from headrace.schema.deployment import Worker

workers_group: Final = typer.Typer(rich_markup_mode=None)

WorkersArgument = Annotated[list[str], argument("WORKER", "Workers, or their nodes.", ...)]
_COLUMNS: Final = ("NODE", "STATE", ">JOBS", "MODELS", "DEVICES", "STARTED", "LABELS")


@workers_group.callback(invoke_without_command=True)
def workers(ctx: typer.Context, as_json: options.Json = False, url: options.Url = None) -> None:
    """List the workers: state, jobs, models with their ready processes, devices; or change one."""
    if ctx.invoked_subcommand is not None:
        options.refuse_before_subcommand(ctx)
        return
    with client_of(url) as client:
        found = client.workers()
    output.listing(found, _COLUMNS, _row, as_json=as_json, empty="no worker runs")


@workers_group.command()
def drain(workers: WorkersArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Let workers claim nothing more; they finish what runs, and keep running."""
    with client_of(url) as client:
        for name in workers:
            worker = client.drain_worker(name)
            output.item(worker, f"{worker.node}  {worker.state}", as_json=as_json)


@workers_group.command()
def resume(
    workers: WorkersArgument, as_json: options.Json = False, url: options.Url = None
) -> None:
    """Let drained workers claim jobs again."""
    with client_of(url) as client:
        for name in workers:
            worker = client.resume_worker(name)
            output.item(worker, f"{worker.node}  {worker.state}", as_json=as_json)


def _row(worker: Worker) -> tuple[str, ...]:
    models = [f"{one.model} {one.ready_replicas}/{one.replicas}" for one in worker.models]
    devices = [
        f"{one.id}" if one.busy_ratio is None else f"{one.id} {one.busy_ratio:.0%}"
        for one in worker.devices
    ]
    return (
        worker.node,
        worker.state,
        f"{worker.jobs:,}",
        ", ".join(models),
        ", ".join(devices),
        "" if worker.started_at is None else ago(worker.started_at),
        ", ".join(worker.labels),
    )
