"""The progress of an item, as its handler reports it. Independent of batches, Redis and HTTP."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

logger = logging.getLogger(__name__)

MESSAGE_MAX_CHARS: Final = 200
#: The decimals of a fraction.
DECIMALS: Final = 4


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a running job, as its handler reports it; for a pipeline, by its stages."""

    fraction: Annotated[float, Meta(ge=0, le=1)] | None
    done: Annotated[int | float | None, Meta(description="In the handler's own unit.")] = None
    total: Annotated[int | float | None, Meta(extra_json_schema={"exclusiveMinimum": 0})] = None
    message: str = ""


class SavedStage(msgspec.Struct):
    """A stage in the record of a pipeline's job."""

    name: str
    status: str
    jobs: int = 0
    done: int = 0
    timings: dict[str, float] | None = None


STAGES: Final = msgspec.json.Decoder(list[SavedStage])


def stages_progress(stages: str) -> Progress | None:
    """Return the progress of a pipeline's job, from the stages in its record."""
    try:
        listed = STAGES.decode(stages)
    except msgspec.MsgspecError:
        return None
    if not listed:
        return None
    shares = [
        1.0 if stage.status == "succeeded" else stage.done / stage.jobs if stage.jobs else 0.0
        for stage in listed
    ]
    at = [(n, stage.name) for n, stage in enumerate(listed, 1) if stage.status == "running"]
    message = ", ".join(f"stage {name} ({n} of {len(listed)})" for n, name in at)
    return Progress(round(sum(shares) / len(listed), DECIMALS), message=_shown(message))


def progress_of(
    done: Any, total: Any, message: Any, complain: Callable[..., None] = logger.warning
) -> Progress | None:
    """Return the progress that a handler reported; None if nothing of it can be shown.

    It never raises: a wrong report must not fail a job. `complain`, a method of a logger, is called
    for values that are ignored.
    """
    text = _shown(message)
    so_far, out_of = _number(done), _number(total)
    wrong = (done is not None and so_far is None) or (
        total is not None and not (out_of and out_of > 0)
    )
    if wrong:
        complain(
            "progress of %.40s of %.40s is ignored: give a fraction, or a number and a total "
            "above 0",
            _text(done, repr),
            _text(total, repr),
        )
    if wrong or so_far is None:
        return Progress(None, message=text) if text else None
    fraction = round(min(1.0, max(0.0, so_far / (out_of or 1.0))), DECIMALS)
    if out_of is None:
        return Progress(fraction, message=text)
    return Progress(fraction, so_far, out_of, text)


def _number(value: Any) -> float | None:
    """Return a finite number, as an int if it is whole; None for anything else."""
    try:
        number = float(value)
    except Exception:  # noqa: BLE001 - an object of the handler may raise anything
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _shown(message: Any) -> str:
    """Return a message on one line, cut if it is long."""
    text = "" if message is None else _text(message, str)
    text = " ".join(text[: 4 * MESSAGE_MAX_CHARS].split())
    text = "".join(char if char.isprintable() else "\ufffd" for char in text)
    return text if len(text) <= MESSAGE_MAX_CHARS else text[: MESSAGE_MAX_CHARS - 1] + "…"


def _text(value: Any, words: Callable[[Any], str]) -> str:
    try:
        return words(value)
    except Exception:  # noqa: BLE001 - likewise
        return f"a {type(value).__name__} without text"
