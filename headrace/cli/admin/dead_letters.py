"""`headrace dead`: lists, shows, requeues and purges dead letters."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import given_ids
from headrace.cli.shared.options import argument, client_of, flag, group, option
from headrace.errors import LetterNotFound
from headrace.text import ago, count

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client.models import DeadLetter

dead_group: Final = group(
    "List, show, requeue and purge dead letters: messages that could not be processed."
)

_IDS: Final = argument(
    "ID",
    "Dead letter ids; - reads ids from standard input.",
    ...,
    autocompletion=options.complete_dead_letter,
)
DeadLettersArgument = Annotated[list[str], _IDS]
OptionalDeadLettersArgument = Annotated[list[str] | None, _IDS]
AllOption = Annotated[bool, option("--all", "Select all dead letters of the model.", ...)]

_COLUMNS: Final = ("ID", "MODEL", "REASON", ">ATTEMPTS", "SUBMITTED", "DIED", "ERROR")
#: The fields of a dead letter in the JSON list; `show` adds the others.
_SUMMARY: Final = (
    "model", "id", "job_id", "reason", "error", "attempts", "created_at", "died_at", "requeueable",
)  # fmt: skip
_SHOWN_MESSAGE_CHARS: Final = 2000
_LEFT_REASONS: Final = {
    "unreadable": "not requeued: it is not a valid job",
    "alive": "not requeued: a job with its id waits or runs, or is newer",
}


@dead_group.command("list")
def list_(
    model: str | None = argument(
        "MODEL", "Only this model (default: all).", autocompletion=options.complete_model
    ),
    limit: options.Limit = options.LIMIT,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """List dead letters, newest first."""
    with client_of(url) as client:
        models = [model] if model else [q.model for q in client.queues() if q.dead_letters]
        streams = [client.dead_letters(name, limit=limit or None) for name in models]
        newest = heapq.merge(*streams, key=lambda dead: dead.died_at, reverse=True)
        output.listing(
            islice(newest, limit or None),
            _COLUMNS,
            _row,
            as_json=as_json,
            fields=_SUMMARY,
            empty="no dead letters",
        )


@dead_group.command()
def show(
    model: options.Model,
    ids: DeadLettersArgument,
    raw: bool = flag("--raw", "Write only the task message of one dead letter, unchanged."),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Show dead letters in full: the traceback, and the message if it is not a job."""
    if raw and (as_json or len(ids) != 1):
        raise typer.BadParameter(
            "--raw takes one id and cannot be combined with --json", param_hint="--raw"
        )
    code = ExitCode.DONE
    with client_of(url) as client:
        for number, dead_id in enumerate(ids if raw else given_ids(ids)):
            try:
                dead = client.dead_letter(model, dead_id)
            except LetterNotFound:
                code = _unknown(model, dead_id)
                continue
            if raw:
                output.binary(dead.raw, "the message")
            elif as_json:
                output.json_line(dead)
            else:
                if number:
                    output.line("")
                _show(dead)
    raise typer.Exit(code)


@dead_group.command()
def requeue(
    model: options.Model,
    ids: OptionalDeadLettersArgument = None,
    every: AllOption = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Requeue dead letters; each job keeps its id and its input."""
    selected = _selected(ids, every=every)
    code = ExitCode.DONE
    with client_of(url) as client:
        if selected is None:
            output.confirm(lambda: _question(client, "requeue all {} of {}?", model), yes=yes)
        done = client.requeue_dead_letters(model, selected, all=every)
    value = {"model": model, "requeued": done.requeued, "left": done.left}
    output.item(value, f"{done.requeued:,} requeued", as_json=as_json)
    for dead_id, reason in done.left.items():
        if reason == "unknown":
            code = max(code, _unknown(model, dead_id))
        else:
            output.message(f"{dead_id}: {_LEFT_REASONS.get(reason, reason)}")
            code = max(code, ExitCode.FAILED)
    raise typer.Exit(code)


@dead_group.command()
def purge(
    model: options.Model,
    ids: OptionalDeadLettersArgument = None,
    every: AllOption = False,
    yes: options.Yes = False,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Delete dead letters permanently; their jobs stay failed."""
    selected = _selected(ids, every=every)
    words = "permanently delete {} of {}?"
    with client_of(url) as client:
        if selected is None:
            output.confirm(
                lambda: _question(client, words.replace("{}", "all {}", 1), model), yes=yes
            )
        else:
            letters = count(len(selected), "dead letter")
            output.confirm(lambda: words.format(letters, model), yes=yes)
        purged = client.purge_dead_letters(model, selected, all=every)
    output.item({"model": model, "purged": purged}, f"{purged:,} deleted", as_json=as_json)
    missing = len(selected or ()) - purged
    if missing > 0:
        output.message(f"{missing:,} of these ids are not dead letters of {model}")
        raise typer.Exit(ExitCode.UNKNOWN_ID)


def _selected(ids: Sequence[str] | None, *, every: bool) -> list[str] | None:
    """Return the ids once each, or None for --all; raise BadParameter unless one is given."""
    if bool(ids) == every:
        problem = "--all cannot be combined with ids" if every else "give ids, or --all"
        raise typer.BadParameter(problem, param_hint="ID...")
    return None if every else list(dict.fromkeys(given_ids(ids or ())))


def _question(client: Client, words: str, model: str) -> str:
    """Return the question; empty if there are no dead letters, or the model does not exist."""
    number = sum(queue.dead_letters for queue in client.queues() if queue.model == model)
    return words.format(count(number, "dead letter"), model) if number else ""


def _unknown(model: str, dead_id: str) -> ExitCode:
    output.message(
        f"{dead_id}: no such dead letter of {model}; it was requeued, deleted, or has expired"
    )
    return ExitCode.UNKNOWN_ID


def _row(dead: DeadLetter) -> tuple[str, ...]:
    # The submission time of a message that is not a job is unknown.
    submitted = ago(dead.created_at) if dead.requeueable else ""
    return (
        dead.id, dead.model, dead.reason, str(dead.attempts),
        submitted, ago(dead.died_at), output.short_line(dead.error),
    )  # fmt: skip


def _show(dead: DeadLetter) -> None:
    submitted = [("submitted", _moment(dead.created_at))] if dead.requeueable else []
    output.pairs([
        ("id", dead.id),
        ("model", dead.model),
        ("reason", dead.reason),
        ("error", output.printable(dead.error)),
        ("attempts", str(dead.attempts)),
        *submitted,
        ("died", _moment(dead.died_at)),
        ("requeue", "possible" if dead.requeueable else "not possible: not a valid job"),
    ])  # fmt: skip
    if dead.traceback:
        output.line("")
        output.line(output.printable(dead.traceback.rstrip()))
    if not dead.requeueable:
        raw = dead.raw
        text = output.printable(raw.decode("utf-8", "backslashreplace"))
        complete = len(text) <= _SHOWN_MESSAGE_CHARS
        output.line("")
        output.line(f"message, {count(len(raw), 'byte')}:")
        output.line(text if complete else f"{text[:_SHOWN_MESSAGE_CHARS]}… (--raw prints all)")


def _moment(moment: datetime) -> str:
    return f"{moment.isoformat(' ', 'seconds')}, {ago(moment)}"
