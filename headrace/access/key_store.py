"""Create, list, rotate and revoke the API keys of a deployment, in its Redis.

It requires no key itself: access to Redis already allows everything. Independent of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from redis.exceptions import RedisError

from headrace.access.api_key import (
    NAME_MAX_CHARS,
    ApiKey,
    PresentedKey,
    Scope,
    digest_of,
    fields_of,
    key_from,
    new_key,
    read_key,
    written,
)
from headrace.errors import BrokerUnavailable, ConfigError
from headrace.redis import keys
from headrace.redis.connection import connect, redact_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

#: The bounds of a key's rate, in requests per second.
RATE_MIN: Final = 0.001
RATE_MAX: Final = 1_000_000
#: The bound of a key's tokens a minute.
TOKENS_PER_MINUTE_MAX: Final = 1_000_000_000_000
#: Seconds for which an expired key is still listed, so that the reason of a 401 can be found.
SHOWN_AFTER_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key in a list, with its number of jobs in flight."""

    key: ApiKey
    jobs: int


class ApiKeyStore:
    """The keys in one Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        *,
        rate: float = 0.0,
        in_flight: int = 0,
        tokens_per_minute: int = 0,
        expires_in_s: float = 0.0,
        acts: bool = False,
    ) -> tuple[ApiKey, str]:
        """Create a key; return it as Redis has it, and its text, which cannot be read again.

        `ApiKey` explains its limits.

        Args:
            expires_in_s: seconds until it expires; 0 for never.
            acts: it may act for other keys, as components of the deployment do.

        Raises:
            ConfigError: the name or a limit is not valid, or no scope is given.
        """
        _check_new_key(name, scopes, rate, tokens_per_minute)
        made, now_s = new_key(), time.time()
        key = ApiKey(
            id=made.id,
            name=name,
            digest=digest_of(made.secret),
            scopes=frozenset(scopes),
            rate=rate,
            in_flight=in_flight,
            tokens_per_minute=tokens_per_minute,
            created_s=now_s,
            expires_s=now_s + expires_in_s if expires_in_s else 0.0,
            acts=acts,
        )
        with self._client.pipeline() as pipe:
            pipe.hset(keys.api_key(key.id), mapping=fields_of(key))
            if key.expires_s:
                pipe.expireat(keys.api_key(key.id), int(key.expires_s + SHOWN_AFTER_S))
            pipe.zadd(keys.API_KEYS, {key.id: now_s})
            # An API process may have cached that this id is unknown.
            pipe.publish(keys.API_KEY_CHANGES, key.id)
            pipe.execute()
        return key, written(made)

    def all(self) -> list[ListedKey]:
        """Return every key, the oldest first."""
        ids = [raw.decode() for raw in self._client.zrange(keys.API_KEYS, 0, -1)]
        with self._client.pipeline(transaction=False) as pipe:
            for key_id in ids:
                pipe.hgetall(keys.api_key(key_id))
                pipe.hget(keys.IN_FLIGHT, key_id)
            answers = pipe.execute()
        found = []
        for key_id, fields, jobs in zip(ids, answers[::2], answers[1::2], strict=True):
            key = key_from(key_id, fields)
            if key is not None:
                found.append(ListedKey(key, int(jobs or 0)))
            elif not fields:
                self._client.zrem(keys.API_KEYS, key_id)
        return found

    def rotate(self, key_id: str, *, grace_s: float = 0.0) -> tuple[ApiKey, str]:
        """Give a key a new secret; its jobs and limits stay.

        Args:
            grace_s: seconds for which the previous secret stays valid.

        Raises:
            ConfigError: no key has this id.
        """
        fields = self._client.hgetall(keys.api_key(key_id))
        key = key_from(key_id, fields) if fields else None
        if key is None:
            raise no_key(key_id)
        secret = new_key().secret
        key = msgspec.structs.replace(
            key,
            digest=digest_of(secret),
            old_digest=key.digest if grace_s else b"",
            old_until_s=time.time() + grace_s if grace_s else 0.0,
        )
        with self._client.pipeline() as pipe:
            pipe.hset(keys.api_key(key_id), mapping=fields_of(key))
            pipe.publish(keys.API_KEY_CHANGES, key_id)
            pipe.execute()
        return key, written(PresentedKey(key_id, secret))

    def revoke(self, key_id: str) -> None:
        """Delete a key at once. Its jobs continue, visible only to keys with `manage`.

        Raises:
            ConfigError: no key has this id.
        """
        with self._client.pipeline() as pipe:
            pipe.delete(keys.api_key(key_id), keys.rate(key_id), keys.token_rate(key_id))
            pipe.zrem(keys.API_KEYS, key_id)
            pipe.publish(keys.API_KEY_CHANGES, key_id)
            deleted, listed, _ = pipe.execute()
        if not deleted and not listed:
            raise no_key(key_id)


def _check_new_key(
    name: str, scopes: Collection[Scope], rate: float, tokens_per_minute: int
) -> None:
    if not name.strip() or len(name) > NAME_MAX_CHARS or not name.isprintable():
        raise ConfigError(
            f"a key cannot have the name {name[:NAME_MAX_CHARS]!r}",
            hint=f"Give 1 to {NAME_MAX_CHARS} printable characters.",
        )
    if not scopes:
        raise ConfigError("a key needs at least one scope", hint=f"Give {', '.join(Scope)}.")
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(
            f"a key cannot have a rate of {rate:g} requests per second",
            hint=f"Give {RATE_MIN:g} to {RATE_MAX:,}; leave it out, or give 0, for no limit.",
        )
    if not 0 <= tokens_per_minute <= TOKENS_PER_MINUTE_MAX:
        raise ConfigError(
            f"a key cannot have {tokens_per_minute} tokens a minute",
            hint=f"Give 1 to {TOKENS_PER_MINUTE_MAX:,}; leave it out, or give 0, for no limit.",
        )


def no_key(key_id: str) -> ConfigError:
    """Return the error for an id that no key has."""
    presented = read_key(key_id.strip())
    if presented is not None:
        # Do not repeat a whole key: the error may be logged.
        return ConfigError(
            f"that is a whole API key; its id is {presented.id}",
            hint="give the id alone; other users can read a command line",
        )
    return ConfigError(
        f"there is no API key {key_id[:64]!r}",
        hint="`headrace keys list` lists the ids; the id is the middle part of a key",
    )


@contextmanager
def api_keys_at(url: str) -> Iterator[ApiKeyStore]:
    """Open the keys in the Redis at a URL.

    Raises:
        BrokerUnavailable: Redis does not answer.
        ConfigError: the URL cannot be read.
    """
    client = connect(url)
    try:
        yield ApiKeyStore(client)
    except RedisError as error:
        raise BrokerUnavailable(
            f"Redis at {redact_url(url)} does not answer: {error}",
            hint="correct HEADRACE_REDIS_URL, or start it",
        ) from error
    finally:
        client.close()
