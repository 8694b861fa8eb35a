"""Profiles of model processes in Redis: requests of the API, and what the workers answer.

A worker reads each second if a profile was requested, with the registry's revision. The newest
`KEPT` profiles are kept for `TTL_S` seconds, each with at most 8 MiB of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.keys import VERSION_SEPARATOR
from headrace.redis.scripts import Command, script
from headrace.schema.members import time_of
from headrace.schema.operation import Profile, ProfileFile

KEPT: Final = 8
TTL_S: Final = 3600
#: A worker takes a request within a second or two. After so long, none will.
TAKEN_S: Final = 15
#: How long a process may write its files, beyond the time that it profiles.
WRITE_S: Final = 60
#: Reads the revision of the registry, and whether a profile was requested since the last time.
READ_CHANGES: Final[Command] = ("HMGET", keys.REGISTRY, "generation", "change", "profile")
#: Returns the ids of all profiles, the newest first.
READ_IDS: Final[Command] = ("ZREVRANGE", keys.PROFILES, 0, -1)
#: How the id of an automatic profile begins.
AUTOMATIC: Final = "auto-"
_FILE: Final = b"file:"
BATCHES_MAX: Final = 100
SECONDS_MAX: Final = 300.0

Kind = Literal["trace", "stack"]


class ProfileRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to profile."""

    kind: Annotated[
        Kind, Meta(description="PyTorch's trace of batches, or samples of the verbs' stacks.")
    ] = "trace"
    batches: Annotated[
        int, Meta(ge=1, le=BATCHES_MAX, description="How many batches a trace has.")
    ] = 5
    seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=SECONDS_MAX,
            description="How long a trace waits for its batches, or how long stacks are sampled.",
        ),
    ] = 10.0
    version: Annotated[str, Meta(description="By default the default version.")] = ""


def of_model(model: str, version: str) -> str:
    """Return how a record names a version of a model."""
    return f"{model}{VERSION_SEPARATOR}{version}"


def request(profile_id: str, asked: ProfileRequest, model: str, version: str) -> Command:
    """Return the command that requests a profile; it replies with the id of one that runs."""
    limit_us = int((asked.seconds + WRITE_S) * US_PER_S)
    return script("profiles/request").call(
        [], profile_id, msgspec.json.encode(asked), of_model(model, version), limit_us, TTL_S, KEPT
    )


def take(profile_id: str, owner: str) -> Command:
    """Return the command with which a worker takes a request; it replies with the request."""
    return script("profiles/take").call([], profile_id, owner, TAKEN_S * US_PER_S)


def save(
    profile_id: str,
    files: Mapping[str, bytes],
    error: str = "",
    *,
    automatic: tuple[ProfileRequest, str] | None = None,
) -> Command:
    """Return the command that saves how a profile has ended.

    Args:
        error: why it has failed; "" if it has not.
        automatic: for a profile without a request: what it has, and `of_model`.
    """
    made, of = automatic or (None, "")
    flat = [part for pair in files.items() for part in pair]
    return script("profiles/save").call(
        [], profile_id, msgspec.json.encode(made) if made else "", of, error, TTL_S, KEPT, *flat
    )


def read_state(profile_id: str) -> Command:
    """Return the command that reads the state of a profile, and `of_model`."""
    return ("HMGET", keys.profile(profile_id), "state", "of")


def read_fields(profile_id: str) -> Command:
    """Return the command that reads the names of a profile's fields."""
    return ("HKEYS", keys.profile(profile_id))


def record_commands(profile_id: str, fields: Sequence[bytes]) -> list[Command]:
    """Return the commands that read a profile without its files, and the size of each file."""
    key = keys.profile(profile_id)
    sizes: list[Command] = [("HSTRLEN", key, name) for name in fields if name.startswith(_FILE)]
    return [("HMGET", key, "request", "of", "state", "error", "at", "until"), *sizes]


def read_file(profile_id: str, name: str) -> Command:
    """Return the command that reads a file of a profile."""
    return ("HGET", keys.profile(profile_id), _FILE + name.encode())


def profile_of(
    profile_id: str, fields: Sequence[bytes], replies: Sequence[Any], now_us: int
) -> Profile | None:
    """Return a profile from the replies to `record_commands`; None if it has expired."""
    (text, of, state, error, at, until), *sizes = replies
    if text is None or state is None:
        return None
    asked = msgspec.json.decode(text, type=ProfileRequest)
    model, _, version = of.decode().rpartition(VERSION_SEPARATOR)
    names = [name.removeprefix(_FILE).decode() for name in fields if name.startswith(_FILE)]
    found, why = state.decode(), (error or b"").decode()
    if found == "requested" and now_us > int(at) + TAKEN_S * US_PER_S:
        found = "failed"
        why = (
            "no worker took the request: each loads this version now, or follows another models "
            "file; `headrace models MODEL` shows the workers"
        )
    elif found == "running" and now_us > int(until):
        found, why = "failed", "the worker did not answer in time: it has ended, or hangs"
    return Profile(
        id=profile_id,
        model=model,
        version=version,
        kind=asked.kind,
        state=found,
        error=why or None,
        automatic=profile_id.startswith(AUTOMATIC),
        at=time_of(int(at)),
        files=[ProfileFile(name, size) for name, size in zip(names, sizes, strict=True)],
    )
