"""Profiles of model processes: request one, see how far it is, read its files."""

from __future__ import annotations

import secrets
from typing import Final

from api.http.bodies import read_body
from api.http.messages import NO_STORE, Reply, Request, json_reply
from api.routes.admin.registry import registry_of
from api.services import Services
from api.submission.decoding import JsonDecoder
from headrace.errors import Conflict, ProfileNotFound
from headrace.observability import profiles
from headrace.observability.profiles import ProfileRequest
from headrace.redis.clock import US_PER_S
from headrace.schema.operation import Profile, Profiles

PATH: Final = "/api/v1/profiles"
_BODY_MAX_BYTES: Final = 64 * 1024
_REQUEST: Final = JsonDecoder(ProfileRequest)


async def request_profile(services: Services, request: Request, model: str) -> Reply:
    """Profile a model process that is running: its next batches, or its stacks for a time."""
    asked = _REQUEST.decode(await read_body(request, _BODY_MAX_BYTES, fixed=True) or b"{}")
    registered = await registry_of(services).model(model)
    version = asked.version or registered.default_version
    registered.version(version)
    status = (await services.model_statuses.statuses()).get(model)
    workers = [] if status is None else [one.state for one in status.workers]
    if not any(state.ready and state.version in ("", version) for state in workers):
        raise Conflict(
            f"no worker has a model process of {model} {version} that is loaded",
            hint="Send a job, so that a model with `load: on_demand` is loaded; see `headrace "
            f"models {model}`.",
        )
    profile_id = secrets.token_hex(8)
    command = profiles.request(profile_id, asked, model, version)
    (busy,) = await services.queue.call(command)
    if busy:
        raise Conflict(
            f"the model {model} is being profiled: {busy.decode()}",
            hint="Wait until that profile has ended.",
        )
    return json_reply(await _one(services, profile_id), 202)


async def list_profiles(services: Services, _: Request) -> Reply:
    """List the newest profiles; each is kept for an hour."""
    ids = await services.queue.call_once(profiles.READ_IDS)
    found = [await _read(services, one.decode()) for one in ids]
    return json_reply(Profiles([one for one in found if one is not None]))


async def get_profile(services: Services, _: Request, profile_id: str) -> Reply:
    """Return how far a profile is, and the names of its files."""
    return json_reply(await _one(services, profile_id))


async def get_profile_file(services: Services, _: Request, profile_id: str, name: str) -> Reply:
    """Return a file of a profile."""
    command = profiles.read_file(profile_id, name)
    body: bytes | None = await services.queue.call_once(command)
    if body is None:
        await _one(services, profile_id)
        raise ProfileNotFound(
            f"the profile {profile_id} has no file {name[:64]!r}",
            hint="GET the profile: it lists its files.",
        )
    return Reply(200, body, b"application/octet-stream", (NO_STORE,))


async def _one(services: Services, profile_id: str) -> Profile:
    found = await _read(services, profile_id)
    if found is None:
        raise ProfileNotFound(
            f"there is no profile {profile_id[:64]!r}",
            hint="It never existed, is older than an hour, or eight newer ones exist.",
        )
    return found


async def _read(services: Services, profile_id: str) -> Profile | None:
    fields: list[bytes] = await services.queue.call_once(profiles.read_fields(profile_id))
    commands = profiles.record_commands(profile_id, fields)
    (seconds, micros), *found = await services.queue.read_all([("TIME",), *commands])
    now_us = int(seconds) * US_PER_S + int(micros)
    return profiles.profile_of(profile_id, fields, found, now_us)
