"""The API keys of a deployment, in its Redis: made, listed and revoked by whoever operates it.

Knows no HTTP. Who can reach Redis needs no key, so that this asks for none.
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

#: Requests a second that a key may have as its rate.
RATE_MIN: Final = 0.001
RATE_MAX: Final = 1_000_000
#: A key that has expired is listed for so long, so that whoever wonders finds out why.
SHOWN_AFTER_S: Final = 30 * 86_400
#: Keys that processes of the deployment make for themselves live so long, and are made anew before.
INTERNAL_TTL_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key in a list, with its jobs that have not ended."""

    key: ApiKey
    jobs: int


class ApiKeyStore:
    """The keys in one Redis.

    Args:
        client: a connection to it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        *,
        rate: float = 0.0,
        in_flight: int = 0,
        expires_in_s: float = 0.0,
        acts: bool = False,
    ) -> tuple[ApiKey, str]:
        """Make a key; what is kept of it, and the key itself, which nobody can find out again.

        Args:
            name: for people.
            scopes: what it may do.
            rate: requests a second; 0 for no limit.
            in_flight: the most jobs that have not ended; 0 for no limit.
            expires_in_s: seconds until it is none; 0 for never.
            acts: it may act for other keys: for parts of the deployment itself.

        Raises:
            ConfigError: the name or the rate does not fit, or it could do nothing.
        """
        if not name.strip() or len(name) > NAME_MAX_CHARS or not name.isprintable():
            raise ConfigError(
                f"a key cannot have the name {name[:NAME_MAX_CHARS]!r}",
                hint=f"Give 1 to {NAME_MAX_CHARS} printable characters.",
            )
        if not scopes:
            raise ConfigError(
                "a key without a scope could do nothing", hint=f"Give {', '.join(Scope)}."
            )
        if rate and not RATE_MIN <= rate <= RATE_MAX:
            raise ConfigError(
                f"a key cannot have a rate of {rate:g} a second",
                hint=f"Give {RATE_MIN:g} to {RATE_MAX:,}; 0, or none at all, is no limit.",
            )
        made, now_s = new_key(), time.time()
        key = ApiKey(
            id=made.id,
            name=name,
            digest=digest_of(made.secret),
            scopes=frozenset(scopes),
            rate=rate,
            in_flight=in_flight,
            created_s=now_s,
            expires_s=now_s + expires_in_s if expires_in_s else 0.0,
            acts=acts,
        )
        with self._client.pipeline() as pipe:
            pipe.hset(keys.api_key(key.id), mapping=fields_of(key))
            if key.expires_s:
                pipe.expireat(keys.api_key(key.id), int(key.expires_s + SHOWN_AFTER_S))
            pipe.zadd(keys.API_KEYS, {key.id: now_s})
            # An API process may just have looked for it, and remembers that there was none.
            pipe.publish(keys.API_KEY_NEWS, key.id)
            pipe.execute()
        return key, written(made)

    def all(self) -> list[ListedKey]:
        """Every key, the oldest first."""
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
        """Give a key a new secret: the same key, with its jobs and limits.

        Args:
            key_id: the key.
            grace_s: for so long the secret before is good too.

        Raises:
            ConfigError: there is none of that id.
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
            pipe.publish(keys.API_KEY_NEWS, key_id)
            pipe.execute()
        return key, written(PresentedKey(key_id, secret))

    def revoke(self, key_id: str) -> None:
        """Make a key none, at once and for good. Its jobs go on, and are seen by `manage` alone.

        Raises:
            ConfigError: there is none of that id.
        """
        with self._client.pipeline() as pipe:
            pipe.delete(keys.api_key(key_id), keys.rate(key_id))
            pipe.zrem(keys.API_KEYS, key_id)
            pipe.publish(keys.API_KEY_NEWS, key_id)
            deleted, listed, _ = pipe.execute()
        if not deleted and not listed:
            raise no_key(key_id)

    def count_anew(self) -> dict[str, int]:
        """Count the jobs in flight by looking at every record; what stood there is written over.

        For after records were lost or deleted by hand, where nobody has counted their end. Jobs
        that are submitted or end meanwhile may be miscounted: best done while nothing runs.
        """
        counts: dict[str, int] = {}
        for raw in self._client.scan_iter(match=f"{keys.JOB_PREFIX}*", count=1000, _type="hash"):
            state, owner = self._client.hmget(raw, keys.F.STATE, keys.F.KEY)
            if owner and state in (b"q", b"d", b"r"):
                counts[owner.decode()] = counts.get(owner.decode(), 0) + 1
        with self._client.pipeline() as pipe:
            pipe.delete(keys.IN_FLIGHT)
            if counts:
                pipe.hset(keys.IN_FLIGHT, mapping=counts)
            pipe.execute()
        return counts


def no_key(key_id: str) -> ConfigError:
    """The error where an id is that of no key."""
    presented = read_key(key_id.strip())
    if presented is not None:
        # A whole key is not repeated where it may end up in a log.
        return ConfigError(
            f"that is a whole API key; its id is {presented.id}",
            hint="give the id alone, and never a key on a command line, where others may see it",
        )
    return ConfigError(
        f"there is no API key {key_id[:64]!r}",
        hint="`headrace keys list` lists the ids; the id is the middle part of a key",
    )


@contextmanager
def api_keys_at(url: str) -> Iterator[ApiKeyStore]:
    """The keys in the Redis at a URL.

    Raises:
        BrokerUnavailable: it does not answer.
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


def internal_key(url: str, part: str) -> str:
    """A key with which a part of the deployment acts for the owners of jobs; it lives for a day.

    Whoever can reach Redis may do everything anyway, so that such a part makes its own and nobody
    has to hand one out.

    Args:
        url: the deployment's Redis.
        part: its name, for lists.
    """
    with api_keys_at(url) as found:
        scopes = [Scope.SUBMIT, Scope.READ]
        _, text = found.create(f"{part} (internal)", scopes, expires_in_s=INTERNAL_TTL_S, acts=True)
        return text
