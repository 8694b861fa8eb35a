"""Who may do what: API keys, their scopes and limits, and what follows for jobs.

Knows no HTTP and no Redis: `headrace.access.key_store` keeps the keys, `api.auth.authenticator`
    asks at each request.

A key is `hr_<id>_<secret>`. The id is no secret: it names the owner in records, logs and lists. The
secret is 256 random bits, of which only the SHA-256 is kept. A slow hash (bcrypt, Argon2) is for
what people choose: it makes guessing a short list expensive. Nobody guesses 256 random bits, so
that a fast one gives nothing away, and it is paid with each request.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

SECRET_BYTES: Final = 32
NAME_MAX_CHARS: Final = 64
#: In place of a key's id where a job is nobody's.
NOBODY: Final = "-"
_ID_BYTES: Final = 6
_KEY = re.compile(r"hr_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """What a key is for; none includes another."""

    SUBMIT = "submit"
    READ = "read"
    MANAGE = "manage"


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """A key as Redis has it.

    Attributes:
        id: its name in records and lists.
        name: for people.
        digest: the SHA-256 of the secret.
        scopes: what it may do.
        rate: requests (and lines of bulk requests) a second; 0 for no limit.
        in_flight: the most jobs of it that have not ended; 0 for no limit.
        created_s: seconds since 1970.
        expires_s: from then on it is none; 0 for never.
        acts: it is of the deployment itself, and may act for the owner of a job.
        old_digest: the SHA-256 of the secret before, while that is good too.
        old_until_s: until then.
    """

    id: str
    name: str
    digest: bytes
    scopes: frozenset[Scope]
    rate: float = 0.0
    in_flight: int = 0
    created_s: float = 0.0
    expires_s: float = 0.0
    acts: bool = False
    old_digest: bytes = b""
    old_until_s: float = 0.0

    def is_secret(self, secret: str, now_s: float) -> bool:
        """Whether that is its secret, told in a time that says nothing about where they differ."""
        digest = digest_of(secret)
        if hmac.compare_digest(digest, self.digest):
            return True
        return now_s < self.old_until_s and hmac.compare_digest(digest, self.old_digest)

    def expired(self, now_s: float) -> bool:
        """Whether its time is over."""
        return 0 < self.expires_s <= now_s


class Caller(msgspec.Struct, frozen=True, gc=False):
    """On whose behalf a request is answered.

    Attributes:
        key_id: what its jobs carry; "" for nobody.
        sees_all: whether jobs of others exist for it.
        in_flight: the most jobs of it that have not ended; 0 for no limit.
        rate: requests a second; 0 for no limit.
    """

    key_id: str
    sees_all: bool
    in_flight: int = 0
    rate: float = 0.0

    def may_see(self, owner: str) -> bool:
        """Whether a job of that owner ("": nobody's) exists for it."""
        return self.sees_all or owner == self.key_id

    @property
    def only(self) -> str | None:
        """Whose jobs exist for it, as scripts are told; None for everybody's."""
        return None if self.sees_all else self.key_id or NOBODY


#: Where no keys are asked for, everybody is this.
EVERYBODY: Final = Caller(key_id="", sees_all=True)


def caller_of(key: ApiKey) -> Caller:
    """What a request with this key may see."""
    return Caller(key.id, Scope.MANAGE in key.scopes, key.in_flight, key.rate)


class PresentedKey(NamedTuple):
    """A key as a client gave it."""

    id: str
    secret: str


def read_key(text: str) -> PresentedKey | None:
    """A key's parts; None for what is no key."""
    found = _KEY.fullmatch(text)
    return None if found is None else PresentedKey(found.group(1), found.group(2))


def new_key() -> PresentedKey:
    """A key that nobody else has."""
    return PresentedKey(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(SECRET_BYTES))


def written(key: PresentedKey) -> str:
    """A key as clients give it."""
    return f"hr_{key.id}_{key.secret}"


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def fields_of(key: ApiKey) -> dict[str, str]:
    """A key as the hash in Redis."""
    return {
        "name": key.name,
        "sha256": key.digest.hex(),
        "scopes": ",".join(sorted(key.scopes)),
        "rate": f"{key.rate:g}",
        "in_flight": str(key.in_flight),
        "created": f"{key.created_s:.6f}",
        "expires": f"{key.expires_s:.6f}",
        "acts": "1" if key.acts else "",
        "old_sha256": key.old_digest.hex(),
        "old_until": f"{key.old_until_s:.6f}",
    }


def key_from(key_id: str, fields: Mapping[bytes, bytes]) -> ApiKey | None:
    """A key out of its hash; None for one that cannot be read, which lets nobody in."""
    said = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
    try:
        return ApiKey(
            id=key_id,
            name=said["name"],
            digest=bytes.fromhex(said["sha256"]),
            scopes=frozenset(Scope(scope) for scope in said["scopes"].split(",") if scope),
            rate=float(said["rate"]),
            in_flight=int(said["in_flight"]),
            created_s=float(said["created"]),
            expires_s=float(said["expires"]),
            acts=said["acts"] == "1",
            old_digest=bytes.fromhex(said["old_sha256"]),
            old_until_s=float(said["old_until"]),
        )
    except (KeyError, ValueError):
        return None
