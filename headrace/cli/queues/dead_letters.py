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
from headrace.cli.shared.confirm import ask
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.ids import given_ids
from headrace.errors import LetterNotFound

if TYPE_CHECKING:
    from headrace import Client
    from headrace.client.models import DeadLetter

#: What the list says of a letter in JSON; the rest is what `show` adds.
_SUMMARY: Final = (
    "model", "id", "job_id", "reason", "error", "attempts", "created_at", "died_at", "requeueable",
)  # fmt: skip
_SHOWN_MESSAGE_CHARS: Final = 2000
_WHY_LEFT: Final = {
    "unreadable": "left where it is: it is no job that could run",
    "alive": "left where it is: a job of its id waits or runs, or is a later one",
}


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """Which letters a command is about.

    Attributes:
        model: whose they are.
        names: their ids; `-` stands for those on standard input.
        every: all of the model's, in place of names.
        yes: do not ask.
    """

    model: str
    names: Sequence[str]
    every: bool
    yes: bool

    def __post_init__(self) -> None:
        """Find what cannot be right.

        Raises:
            typer.BadParameter: neither ids are given nor all are meant, or both.
        """
        if bool(self.names) == self.every:
            problem = "leave out the ids, or --all" if self.every else "name letters, or say --all"
            raise typer.BadParameter(problem, param_hint="ID...")

    def ids(self) -> list[str] | None:
        """Their ids, each once; None for all."""
        return None if self.every else list(dict.fromkeys(given_ids(self.names)))


def show_list(url: str | None, model: str | None, *, limit: int, as_json: bool) -> None:
    """Show the newest letters, of a model or of all."""
    from headrace import Client

    with Client(url) as client:
        models = [model] if model else [q.model for q in client.queues() if q.dead_letters]
        streams = [client.dead_letters(name, limit=limit or None) for name in models]
        newest = heapq.merge(*streams, key=lambda letter: letter.died_at, reverse=True)
        letters = islice(newest, limit or None)
        if as_json:
            for letter in letters:
                output.json_line({name: getattr(letter, name) for name in _SUMMARY})
            return
        rows = [_row(letter) for letter in letters]
    if rows:
        heads = ("ID", "MODEL", "REASON", ">ATTEMPTS", "SUBMITTED", "DIED", "ERROR")
        output.table(heads, rows)
    else:
        output.say("no dead letters")


def show(url: str | None, model: str, names: Sequence[str], *, as_json: bool) -> ExitCode:
    """Show these letters whole."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        for number, name in enumerate(given_ids(names)):
            try:
                letter = client.dead_letter(model, name)
            except LetterNotFound:
                code = _unknown(model, name)
                continue
            if as_json:
                output.json_line(letter)
                continue
            if number:
                output.line("")
            _show(letter)
    return code


def show_raw(url: str | None, model: str, name: str) -> ExitCode:
    """Write the message of one letter on standard output, byte for byte."""
    from headrace import Client

    with Client(url) as client:
        try:
            output.raw(client.dead_letter(model, name).raw, "the message")
        except LetterNotFound:
            return _unknown(model, name)
    return ExitCode.DONE


def requeue(url: str | None, what: LetterSelection, *, as_json: bool) -> ExitCode:
    """Put letters back, and say which were left."""
    from headrace import Client

    code = ExitCode.DONE
    with Client(url) as client:
        if what.every:
            ask(lambda: _question(client, what, "put back all {} of {}?"), yes=what.yes)
        done = client.requeue_dead_letters(what.model, what.ids(), all=what.every)
    if as_json:
        output.json_line({"model": what.model, "requeued": done.requeued, "left": done.left})
    else:
        output.line(f"{done.requeued:,} put back")
    for name, why in done.left.items():
        if why == "unknown":
            code = max(code, _unknown(what.model, name))
        else:
            output.say(f"{name}: {_WHY_LEFT.get(why, why)}")
            code = max(code, ExitCode.FAILED)
    return code


def purge(url: str | None, what: LetterSelection, *, as_json: bool) -> ExitCode:
    """Remove letters, and say how many there were."""
    from headrace import Client

    ids = what.ids()
    with Client(url) as client:
        if ids is None:
            ask(lambda: _question(client, what, "remove all {} of {} for good?"), yes=what.yes)
        else:
            count = output.count(len(ids), "dead letter")
            ask(lambda: f"remove {count} of {what.model} for good?", yes=what.yes)
        purged = client.purge_dead_letters(what.model, ids, all=what.every)
    if as_json:
        output.json_line({"model": what.model, "purged": purged})
    else:
        output.line(f"{purged:,} removed")
    missing = 0 if ids is None else len(ids) - purged
    if missing > 0:
        output.say(f"{missing:,} of these ids are no dead letters of {what.model}")
        return ExitCode.UNKNOWN_ID
    return ExitCode.DONE


def _question(client: Client, what: LetterSelection, words: str) -> str:
    """Empty where there are none, or no such model, which the server will say."""
    count = sum(queue.dead_letters for queue in client.queues() if queue.model == what.model)
    return words.format(output.count(count, "dead letter"), what.model) if count else ""


def _unknown(model: str, name: str) -> ExitCode:
    output.say(
        f"{name}: no such dead letter of {model}; it was put back or removed, or has run out"
    )
    return ExitCode.UNKNOWN_ID


def _row(letter: DeadLetter) -> tuple[str, ...]:
    # What is no job was not submitted at any time that is known.
    submitted = output.ago(letter.created_at) if letter.requeueable else ""
    return (
        letter.id, letter.model, letter.reason, str(letter.attempts),
        submitted, output.ago(letter.died_at), output.short_line(letter.error),
    )  # fmt: skip


def _show(letter: DeadLetter) -> None:
    submitted = [("submitted", _moment(letter.created_at))] if letter.requeueable else []
    output.pairs([
        ("id", letter.id),
        ("model", letter.model),
        ("reason", letter.reason),
        ("error", output.printable(letter.error)),
        ("attempts", str(letter.attempts)),
        *submitted,
        ("died", _moment(letter.died_at)),
        ("requeue", "it can be put back" if letter.requeueable else "no job that could run"),
    ])  # fmt: skip
    if letter.traceback:
        output.line("")
        output.line(output.printable(letter.traceback.rstrip()))
    if not letter.requeueable:
        _show_message(letter)


def _show_message(letter: DeadLetter) -> None:
    raw = letter.raw
    text = output.printable(raw.decode("utf-8", "backslashreplace"))
    whole = len(text) <= _SHOWN_MESSAGE_CHARS
    output.line("")
    output.line(f"message, {output.count(len(raw), 'byte')}:")
    output.line(text if whole else f"{text[:_SHOWN_MESSAGE_CHARS]}… (all of it: --raw)")


def _moment(moment: datetime) -> str:
    return f"{moment.isoformat(' ', 'seconds')}, {output.ago(moment)}"
