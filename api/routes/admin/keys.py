"""API keys: what the caller may do; list, make and revoke keys. A secret is shown once."""

from __future__ import annotations

import time
from typing import Any, Final

from api.http.messages import NO_CONTENT, Reply, Request, json_reply
from api.services import Services
from api.submission.decoding import JsonDecoder
from headrace.access.api_key import ApiKey, Scope
from headrace.access.key_store import AsyncApiKeyStore, made_key, summary
from headrace.errors import ConfigError, Conflict, InvalidRequest, KeyNotFound
from headrace.redis.clock import US_PER_S
from headrace.schema.deployment import ApiKeyEntry, ApiKeys, CreatedApiKey, KeySelf, NewApiKey
from headrace.schema.members import time_of

PATH: Final = "/api/v1/keys"
BODY_LIMIT_BYTES: Final = 4096
_NEW_KEY: Final = JsonDecoder(NewApiKey)


async def get_self(services: Services, request: Request) -> Reply:
    """Return what the caller's API key allows, without its secret."""
    key_id = request.caller.key_id
    key = await services.queue.api_key(key_id) if key_id else None
    if key is None:
        # Without API keys everybody may do everything; a surface's token is no key.
        return json_reply(KeySelf(id=None, name=None, scopes=sorted(Scope), expires_at=None))
    return json_reply(
        KeySelf(id=key.id, name=key.name, scopes=sorted(key.scopes), expires_at=_expiry(key))
    )


async def list_keys(services: Services, _: Request) -> Reply:
    """List the API keys, the oldest first, without their secrets."""
    now_s = time.time()
    listed = await AsyncApiKeyStore(services.queue).all()
    return json_reply(
        ApiKeys([ApiKeyEntry(**_members(one.key, one.jobs, one.used_s, now_s)) for one in listed])
    )


async def create_key(services: Services, request: Request) -> Reply:
    """Make an API key; only this answer has its text."""
    _require_keys(services)
    wanted = await _NEW_KEY.read(request, BODY_LIMIT_BYTES)
    try:
        key, text = made_key(
            wanted.name,
            [Scope(scope) for scope in wanted.scopes],
            rate=wanted.rate,
            in_flight=wanted.max_in_flight,
            tokens_per_minute=wanted.tokens_per_minute,
            expires_in_s=wanted.expires_in_s,
        )
    except ConfigError as error:
        raise InvalidRequest(error.message, hint=error.hint) from None
    await AsyncApiKeyStore(services.queue).create(key)
    request.target, request.noted = key.id, summary(key)
    members = _members(key, 0, 0, key.created_s)
    return json_reply(CreatedApiKey(**members, key=text), 201)


async def revoke_key(services: Services, request: Request, key: str) -> Reply:
    """Revoke an API key at once; its jobs continue, visible only to keys with `manage`."""
    _require_keys(services)
    store = AsyncApiKeyStore(services.queue)
    known = await services.queue.api_key(key)
    if known is not None and known.acts:
        raise Conflict(
            f"the API key {key} is used by a component of this deployment",
            hint=f"Stop the component. Then an operator may use `headrace keys revoke {key}`.",
        )
    if not await store.revoke(key):
        raise KeyNotFound(f"there is no API key {key}", hint=f"GET {PATH} lists them.")
    request.noted = summary(known) if known is not None else ""
    return Reply(NO_CONTENT, b"")


def _require_keys(services: Services) -> None:
    """Refuse a change by an unknown caller: its key would be valid as soon as keys are required."""
    if services.authenticator is None:
        raise Conflict(
            "this server requires no API keys (auth), so it does not know who asks for one",
            hint="Use `headrace keys` on the server, or set HEADRACE_AUTH=on.",
        )


def _members(key: ApiKey, jobs: int, used_s: int, now_s: float) -> dict[str, Any]:
    return {
        **key.members(jobs),
        "created_at": time_of(round(key.created_s * US_PER_S)),
        "last_used_at": time_of(used_s * US_PER_S) if used_s else None,
        "expires_at": _expiry(key),
        "expired": key.expired(now_s),
    }


def _expiry(key: ApiKey) -> Any:
    return time_of(round(key.expires_s * US_PER_S)) if key.expires_s else None
