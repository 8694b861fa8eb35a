"""The profiles of a model's processes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.jobs.job import Count
from headrace.schema.members import Moment, Word


class ProfileFile(msgspec.Struct, frozen=True):
    """A file of a profile."""

    name: str
    bytes: Count


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of one model process."""

    id: str
    model: str
    version: str
    kind: Annotated[Word, Meta(extra_json_schema={"enum": ["stack", "trace"]})]
    state: Annotated[
        Word,
        Meta(
            description="`requested` until a worker has taken it.",
            extra_json_schema={"enum": ["done", "failed", "requested", "running"]},
        ),
    ]
    error: Annotated[str | None, Meta(description="Why it has failed, and what to do.")]
    automatic: Annotated[bool, Meta(description="The model option `profile` has started it.")]
    at: Annotated[Moment, Meta(description="When it was requested, or was saved.")]
    files: list[ProfileFile]


class Profiles(msgspec.Struct):
    """The newest profiles of all models, the last one first."""

    profiles: list[Profile]
