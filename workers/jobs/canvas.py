"""A job's callbacks: the links, chain and chord in a stock Celery client's message.

The signatures are read as plain JSON. A task without an id gets an id that is derived from the
job's, so that a repeat sends the same task. workers/canvas/sender.py sends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs.ids import callback_id
from headrace.jobs.message import Embed, Envelope, body_text, decode_body, read_envelope
from headrace.jobs.values.encoding import loads

#: A signature as Celery writes it: a dictionary of task, args, kwargs, options and subtask_type.
Signature = dict[str, Any]
#: Signatures that are nested deeper are a mistake or an attack.
DEPTH_MAX: Final = 100


class _Headers(msgspec.Struct, frozen=True):
    """The headers that callbacks need; they can be read even if other headers are invalid."""

    id: Any = None
    root_id: Any = None
    group: Any = None
    group_index: Any = None
    compression: Any = None


_ENVELOPE: Final = msgspec.json.Decoder(Envelope[_Headers])


class Canvas(msgspec.Struct, frozen=True):
    """The callbacks of a job.

    Attributes:
        root_id: the first task of the whole canvas.
        callbacks: sent with the result, if it succeeds.
        errbacks: sent with the job's id, if it fails.
        chain: the remaining tasks of its chain, the next task last.
        chord: the body of the chord that it belongs to.
    """

    id: str
    root_id: str
    callbacks: list[Signature]
    errbacks: list[Signature]
    chain: list[Signature]
    chord: Signature | None
    group: str | None
    group_index: int | None


def read_canvas(raw: bytes) -> Canvas | None:
    """Return the callbacks in a raw message; None if it has none, or they cannot be read."""
    try:
        envelope = read_envelope(raw, _ENVELOPE)
        headers = envelope.headers
        text = body_text(
            envelope.body, envelope.properties.body_encoding, headers.compression, envelope.encoding
        )
        embed, headers = _first_protocol(text) or (decode_body(text)[2], headers)
        if embed is None or not embed.any:
            return None
        job_id = str(headers.id)
        return Canvas(
            id=job_id,
            root_id=headers.root_id if isinstance(headers.root_id, str) else job_id,
            callbacks=_named(embed.callbacks, job_id, "link"),
            errbacks=_named(embed.errbacks, job_id, "error"),
            chain=_named(embed.chain, job_id, "chain"),
            chord=chord_body(embed.chord, headers.group) if embed.chord else None,
            group=headers.group if isinstance(headers.group, str) else None,
            group_index=headers.group_index if isinstance(headers.group_index, int) else None,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, InvalidRequest):
        return None


def _first_protocol(body: bytes) -> tuple[Embed, _Headers] | None:
    """Return what a message of protocol 1 has in its body; None for protocol 2."""
    if not body.lstrip().startswith(b"{"):
        return None
    task: dict[str, Any] = loads(body)
    embed = Embed(task.get("callbacks"), task.get("errbacks"), chord=task.get("chord"))
    return embed, _Headers(task.get("id"), group=task.get("taskset"))


def _named(signatures: Any, job_id: str, place: str) -> list[Signature]:
    listed = [signatures] if isinstance(signatures, dict) else signatures or []
    for n, signature in enumerate(listed):
        name(signature, callback_id(job_id, f"{place}/{n}"))
    return list(listed)


def chord_body(body: Any, group: Any) -> Signature:
    """Give ids to the body of a chord: the same at every member of its group.

    `group` is the id of its header. The body is changed in place.

    Raises:
        TypeError, LookupError, AttributeError, ValueError: as `name` does.
    """
    name(body, callback_id(str(group), "chord"))
    for n, errback in enumerate(_listed(body["options"].get("link_error"))):
        name(errback, callback_id(str(group), f"error/{n}"))
    signature: Signature = body
    return signature


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []


def name(signature: Signature, own: str, place: str = "", depth: int = 0) -> None:
    """Give ids to a signature and to the signatures inside it that have none.

    Celery would draw random ids when it sends them. As in Celery, a chain has the id of its last
    task, and a chord has the id of its body.

    Args:
        signature: as Celery writes it; changed in place.
        own: its id, unless it has an id already.
        place: its place inside the signature that has that id.
        depth: how many signatures it is nested in.

    Raises:
        TypeError, LookupError, AttributeError: it is no signature.
        ValueError: it is nested too deeply.
    """
    if depth > DEPTH_MAX:
        raise ValueError("signatures are nested too deeply")
    options, kind = signature.setdefault("options", {}), signature.get("subtask_type")
    if options.get("task_id"):
        own, place = options["task_id"], ""
    for label, part in parts(signature):
        below = f"{place}{label}"
        if label in _TAKEN_OVER:
            name(part, own, f"{below}/", depth + 1)
        else:
            name(part, callback_id(own, below), "", depth + 1)
    if kind == "chord":
        options.setdefault("task_id", callback_id(own, f"{place}header"))
    elif kind != "chain":
        options["task_id"] = own


#: The parts of a signature that have its own id.
_TAKEN_OVER: Final = ("last", "body")


def parts(signature: Signature) -> Iterator[tuple[str, Signature]]:
    """Yield the signatures inside a signature, each with a label of its place."""
    kind, kwargs = signature.get("subtask_type"), signature.get("kwargs") or {}
    if kind == "chain":
        last = len(kwargs["tasks"]) - 1
        for n, part in enumerate(kwargs["tasks"]):
            yield "last" if n == last else f"step/{n}", part
    elif kind == "group":
        yield from ((f"member/{n}", part) for n, part in enumerate(kwargs["tasks"]))
    elif kind == "chord":
        header = kwargs["header"]
        if isinstance(header, dict):
            yield "header", header
        else:
            yield from ((f"header/{n}", part) for n, part in enumerate(header))
        yield "body", kwargs["body"]
