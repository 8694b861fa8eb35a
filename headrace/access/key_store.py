"""Create, list, rotate and revoke the API keys of a deployment, in its Redis.

It requires no key itself: access to Redis already allows everything. Independent of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
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
from headrace.access.audit import Note, noted
from headrace.errors import BrokerUnavailable, ConfigError
from headrace.redis import keys
from headrace.redis.connection import connect
from headrace.redis.scripts import Command
from headrace.redis.url import redact_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from headrace.redis.script_client import AsyncScriptClient

#: The bounds of a key's rate, in requests per second.
RATE_MIN: Final = 0.001
RATE_MAX: Final = 1_000_000
#: The bound of a key's tokens a minute.
TOKENS_PER_MINUTE_MAX: Final = 1_000_000_000_000
#: Seconds for which an expired key is still listed, so that the reason of a 401 can be found.
SHOWN_AFTER_S: Final = 30 * 86_400
#: The author of a change by a command that has access to Redis.
AT_REDIS: Final = "headrace keys"


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key in a list, with its number of jobs in flight, and when it was last used (0: never)."""

    key: ApiKey
    jobs: int
    used_s: int = 0


class ApiKeyStore:
    """The keys in one Redis."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client

    def _write(self, commands: Sequence[Command]) -> list[Any]:
        with self._client.pipeline() as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(pipe.execute())

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
        key, text = made_key(
            name, scopes, rate=rate, in_flight=in_flight, tokens_per_minute=tokens_per_minute,
            expires_in_s=expires_in_s, acts=acts,
        )  # fmt: skip
        by_hand = [noted(Note(AT_REDIS, "create_key", key.id, summary(key)))]
        self._write([*creation(key), *([] if acts else by_hand)])
        return key, text

    def all(self) -> list[ListedKey]:
        """Return every key, the oldest first."""
        ids = [raw.decode() for raw in self._client.zrange(keys.API_KEYS, 0, -1)]
        with self._client.pipeline(transaction=False) as pipe:
            for key_id in ids:
                pipe.hgetall(keys.api_key(key_id))
                pipe.hget(keys.IN_FLIGHT, key_id)
                pipe.hget(keys.API_KEYS_USED, key_id)
            answers = pipe.execute()
        found, gone = _listed(ids, answers)
        if gone:
            self._client.zrem(keys.API_KEYS, *gone)
            self._client.hdel(keys.API_KEYS_USED, *gone)
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
        self._write([*_saved(key), noted(Note(AT_REDIS, "rotate_key", key_id, summary(key)))])
        return key, written(PresentedKey(key_id, secret))

    def revoke(self, key_id: str) -> None:
        """Delete a key at once. Its jobs continue, visible only to keys with `manage`.

        Raises:
            ConfigError: no key has this id.
        """
        deleted, listed, *_ = self._write(revocation(key_id))
        if not deleted and not listed:
            raise no_key(key_id)
        self._write([noted(Note(AT_REDIS, "revoke_key", key_id))])


class AsyncApiKeyStore:
    """The keys over an asyncio client. All methods raise a BrokerError if Redis fails."""

    def __init__(self, client: AsyncScriptClient) -> None:
        self._client = client

    async def create(self, key: ApiKey) -> None:
        """Save a new key of `made_key`."""
        await self._client.write_all(creation(key))

    async def all(self) -> list[ListedKey]:
        """Return every key, the oldest first."""
        (raw,) = await self._client.read_all([("ZRANGE", keys.API_KEYS, 0, -1)])
        ids = [key_id.decode() for key_id in raw]
        reads: list[Command] = []
        for key_id in ids:
            reads += (
                ("HGETALL", keys.api_key(key_id)),
                ("HGET", keys.IN_FLIGHT, key_id),
                ("HGET", keys.API_KEYS_USED, key_id),
            )
        return _listed(ids, await self._client.read_all(reads))[0]

    async def revoke(self, key_id: str) -> bool:
        """Delete a key at once; return whether it was there."""
        deleted, listed, *_ = await self._client.write_all(revocation(key_id))
        return bool(deleted or listed)

    async def note_use(self, key_id: str) -> None:
        """Save that a key has just been used."""
        await self._client.call_once(("HSET", keys.API_KEYS_USED, key_id, int(time.time())))


def made_key(
    name: str,
    scopes: Collection[Scope],
    *,
    rate: float = 0.0,
    in_flight: int = 0,
    tokens_per_minute: int = 0,
    expires_in_s: float = 0.0,
    acts: bool = False,
) -> tuple[ApiKey, str]:
    """Return a new key, and its text; see `ApiKeyStore.create`."""
    _check_new_key(name, scopes, rate, tokens_per_minute)
    # Its record has six decimals, and other answers read it.
    made, now_s = new_key(), round(time.time(), 6)
    key = ApiKey(
        id=made.id,
        name=name,
        digest=digest_of(made.secret),
        scopes=frozenset(scopes),
        rate=rate,
        in_flight=in_flight,
        tokens_per_minute=tokens_per_minute,
        created_s=now_s,
        expires_s=round(now_s + expires_in_s, 6) if expires_in_s else 0.0,
        acts=acts,
    )
    return key, written(made)


def summary(key: ApiKey) -> str:
    """Return the name and the scopes of a key, for the audit log."""
    return f"{key.name!r} ({', '.join(sorted(key.scopes))})"


def creation(key: ApiKey) -> list[Command]:
    """Return the commands that save a new key."""
    commands: list[Command] = [("ZADD", keys.API_KEYS, f"{key.created_s:.6f}", key.id)]
    if key.expires_s:
        at = int(key.expires_s + SHOWN_AFTER_S)
        commands.append(("EXPIREAT", keys.api_key(key.id), at))
    # An API process may have cached that this id is unknown, so its news comes last.
    first, news = _saved(key)
    return [first, *commands, news]


def revocation(key_id: str) -> list[Command]:
    """Return the commands that delete a key: replies are how many records and list entries."""
    return [
        ("DEL", keys.api_key(key_id), keys.rate(key_id), keys.token_rate(key_id)),
        ("ZREM", keys.API_KEYS, key_id),
        ("HDEL", keys.API_KEYS_USED, key_id),
        ("PUBLISH", keys.API_KEY_CHANGES, key_id),
    ]


def _saved(key: ApiKey) -> tuple[Command, Command]:
    fields = [part for pair in fields_of(key).items() for part in pair]
    return (
        ("HSET", keys.api_key(key.id), *fields),
        ("PUBLISH", keys.API_KEY_CHANGES, key.id),
    )


def _listed(ids: Sequence[str], answers: Sequence[Any]) -> tuple[list[ListedKey], list[str]]:
    """Return the keys, and the ids of those that have expired since."""
    found, gone = [], []
    rows = zip(ids, answers[::3], answers[1::3], answers[2::3], strict=True)
    for key_id, fields, jobs, used in rows:
        key = key_from(key_id, fields) if fields else None
        if key is not None:
            found.append(ListedKey(key, int(jobs or 0), int(used or 0)))
        elif not fields:
            gone.append(key_id)
    return found, gone


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
    """Open the keys in the Redis at a URL; raise BrokerUnavailable or ConfigError if that fails."""
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
