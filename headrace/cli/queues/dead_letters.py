"""`headrace dead`: list, show, requeue and purge dead letters."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

import typer

from headrace.cli.shared import output
from headrace.cli.shared.confirm import confirm
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.inputs import given_ids
from headrace.errors import LetterNotFound

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client.models import DeadLetter

#: The fields of a dead letter in the JSON list; `show` adds the others.
_SUMMARY: Final = (
    "model", "id", "job_id", "reason", "error", "attempts", "created_at", "died_at", "requeueable",
)  # fmt: skip
_SHOWN_MESSAGE_CHARS: Final = 2000
_LEFT_REASONS: Final = {
    "unreadable": "not requeued: it is not a valid job",
    "alive": "not requeued: a job with its id waits or runs, or is newer",
}


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """The dead letters that a command selects.

    Attributes:
        model: their model.
        names: their ids; `-` reads ids from standard input.
        every: select all dead letters of the model, without names.
        yes: do not ask for confirmation.
    """

    model: str
    names: Sequence[str]
    every: bool
    yes: bool

    def __post_init__(self) -> None:
        """Validate the selection.

        Raises:
            typer.BadParameter: there are neither ids nor --all, or both.
        """
        if bool(self.names) == self.every:
            problem = "--all cannot be combined with ids" if self.every else "give ids, or --all"
            raise typer.BadParameter(problem, param_hint="ID...")

    def ids(self) -> list[str] | None:
        """Return their ids without duplicates; None for all."""
        return None if self.every else list(dict.fromkeys(given_ids(self.names)))


def show_list(url: str | None, model: str | None, *, limit: int, as_json: bool) -> None:
    """Print the newest dead letters of a model, or of all models."""
    from headrace import Client

    with Client(url) as client:
        models = [model] if model else [q.model for q in client.queues() if q.dead_letters]
        streams = [client.dead_letters(name, limit=limit or None) for name in models]
        newest = heapq.merge(*streams, key=lambda dead: dead.died_at, reverse=True)
        dead_letters = islice(newest, limit or None)
        if as_json:
            for dead in dead_letters:
                output.json_line({name: getattr(dead, name) for name in _SUMMARY})
            return
        rows = [_row(dead) for dead in dead_letters]
    if rows:
        heads = ("ID", "MODEL", "REASON", ">ATTEMPTS", "SUBMITTED", "DIED", "ERROR")
        output.table(heads, rows)
    else:
        output.message("no dead letters")


def show(url: str | None, model: str, names: Sequence[str], *, as_json: bool) -> ExitCode:
    """Print dead letters with all details."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        for number, name in enumerate(given_ids(names)):
            try:
                dead = client.dead_letter(model, name)
            except LetterNotFound:
                code = _unknown(model, name)
                continue
            if as_json:
                output.json_line(dead)
                continue
            if number:
                output.line("")
            _show(dead)
    return code


def show_raw(url: str | None, model: str, name: str) -> ExitCode:
    """Write the message of one dead letter to standard output, byte for byte."""
    from headrace import Client

    with Client(url) as client:
        try:
            output.binary(client.dead_letter(model, name).raw, "the message")
        except LetterNotFound:
            return _unknown(model, name)
    return ExitCode.DONE


def requeue(url: str | None, selection: DeadLetterSelection, *, as_json: bool) -> ExitCode:
    """Requeue dead letters, and print which were not requeued and why."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        if selection.every:
            confirm(
                lambda: _question(client, selection, "requeue all {} of {}?"), yes=selection.yes
            )
        done = client.requeue_dead_letters(selection.model, selection.ids(), all=selection.every)
    if as_json:
        output.json_line({"model": selection.model, "requeued": done.requeued, "left": done.left})
    else:
        output.line(f"{done.requeued:,} requeued")
    for name, reason in done.left.items():
        if reason == "unknown":
            code = max(code, _unknown(selection.model, name))
        else:
            output.message(f"{name}: {_LEFT_REASONS.get(reason, reason)}")
            code = max(code, ExitCode.FAILED)
    return code


def purge(url: str | None, selection: DeadLetterSelection, *, as_json: bool) -> ExitCode:
    """Delete dead letters, and print how many were deleted."""
    from headrace import Client

    ids = selection.ids()
    with Client(url) as client:
        if ids is None:
            confirm(
                lambda: _question(client, selection, "permanently delete all {} of {}?"),
                yes=selection.yes,
            )
        else:
            count = output.count(len(ids), "dead letter")
            confirm(lambda: f"permanently delete {count} of {selection.model}?", yes=selection.yes)
        purged = client.purge_dead_letters(selection.model, ids, all=selection.every)
    if as_json:
        output.json_line({"model": selection.model, "purged": purged})
    else:
        output.line(f"{purged:,} deleted")
    missing = 0 if ids is None else len(ids) - purged
    if missing > 0:
        output.message(f"{missing:,} of these ids are not dead letters of {selection.model}")
        return ExitCode.UNKNOWN_ID
    return ExitCode.DONE


def _question(client: Client, selection: DeadLetterSelection, words: str) -> str:
    """Return the question; empty if there are no dead letters, or the model does not exist."""
    count = sum(queue.dead_letters for queue in client.queues() if queue.model == selection.model)
    return words.format(output.count(count, "dead letter"), selection.model) if count else ""


def _unknown(model: str, name: str) -> ExitCode:
    output.message(
        f"{name}: no such dead letter of {model}; it was requeued, deleted, or has expired"
    )
    return ExitCode.UNKNOWN_ID


def _row(dead: DeadLetter) -> tuple[str, ...]:
    # The submission time of a message that is not a job is unknown.
    submitted = output.ago(dead.created_at) if dead.requeueable else ""
    return (
        dead.id, dead.model, dead.reason, str(dead.attempts),
        submitted, output.ago(dead.died_at), output.short_line(dead.error),
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
        _show_message(dead)


def _show_message(dead: DeadLetter) -> None:
    raw = dead.raw
    text = output.printable(raw.decode("utf-8", "backslashreplace"))
    complete = len(text) <= _SHOWN_MESSAGE_CHARS
    output.line("")
    output.line(f"message, {output.count(len(raw), 'byte')}:")
    output.line(text if complete else f"{text[:_SHOWN_MESSAGE_CHARS]}… (--raw prints all)")


def _moment(moment: datetime) -> str:
    return f"{moment.isoformat(' ', 'seconds')}, {output.ago(moment)}"
