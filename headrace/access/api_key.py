"""API keys: their text, scopes and limits, and which jobs their callers may see.

A key is `hr_<id>_<secret>`. The id is not secret: it names the owner in records, logs and lists.
The secret is 256 random bits, of which Redis has the SHA-256. A slow hash (bcrypt, Argon2) protects
passwords that people choose, because those can be guessed. 256 random bits cannot be guessed. So a
fast hash is as safe, and each request computes it.

Independent of HTTP and Redis.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

SECRET_BYTES: Final = 32
NAME_MAX_CHARS: Final = 64
#: Replaces the id of a key if a job has no owner.
NO_OWNER: Final = "-"
_ID_BYTES: Final = 6
_KEY = re.compile(r"hr_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """What a key allows; no scope includes another."""

    SUBMIT = "submit"
    READ = "read"
    MANAGE = "manage"


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """A key as Redis has it.

    Attributes:
        name: for people.
        digest: the SHA-256 of the secret.
        rate: requests and jobs per second; 0 for no limit.
        in_flight: the most jobs in flight; 0 for no limit.
        tokens_per_minute: how many tokens its jobs may need a minute; 0 for no limit.
        expires_s: when it expires, in seconds since 1970; 0 for never.
        acts: it belongs to the deployment and may act for the owner of a job.
        old_digest: the SHA-256 of the previous secret, while that is valid too.
        old_until_s: until when the previous secret is valid.
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
    tokens_per_minute: int = 0

    def is_secret(self, secret: str, now_s: float) -> bool:
        """Return whether this is its secret; its duration reveals nothing."""
        digest = digest_of(secret)
        if hmac.compare_digest(digest, self.digest):
            return True
        return now_s < self.old_until_s and hmac.compare_digest(digest, self.old_digest)

    def expired(self, now_s: float) -> bool:
        """Return whether it has expired."""
        return 0 < self.expires_s <= now_s

    def members(self, jobs: int) -> dict[str, Any]:
        """Return what all lists show of it, without its times; `jobs` are in flight."""
        return {
            "id": self.id,
            "name": self.name,
            "scopes": sorted(self.scopes),
            "rate": self.rate or None,
            "max_in_flight": self.in_flight or None,
            "tokens_per_minute": self.tokens_per_minute or None,
            "in_flight": jobs,
            "internal": self.acts,
        }


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Caller(msgspec.Struct, frozen=True, gc=False):
    """The API key that makes a request, with the limits of `ApiKey`.

    Attributes:
        key_id: the owner of its jobs; "" for no owner.
        sees_all: it may see the jobs of other keys.
    """

    key_id: str
    sees_all: bool
    in_flight: int = 0
    rate: float = 0.0
    tokens_per_minute: int = 0

    def may_see(self, owner: str) -> bool:
        """Return whether it may see a job of this owner ("" for no owner)."""
        return self.sees_all or owner == self.key_id

    @property
    def rate_burst(self) -> int:
        """How many requests and jobs the rate allows at once; it has no meaning without a rate."""
        return max(1, int(self.rate))

    @property
    def only(self) -> str | None:
        """The owner whose jobs it may see, as an argument of scripts; None for every owner."""
        return None if self.sees_all else self.key_id or NO_OWNER


#: The caller of every request if no API keys are required.
EVERYBODY: Final = Caller(key_id="", sees_all=True)


def caller_of(key: ApiKey) -> Caller:
    """Return the caller of a request with this key."""
    sees_all = Scope.MANAGE in key.scopes
    return Caller(key.id, sees_all, key.in_flight, key.rate, key.tokens_per_minute)


class PresentedKey(NamedTuple):
    """A key as a client sends it."""

    id: str
    secret: str


def read_key(text: str) -> PresentedKey | None:
    """Return the parts of a key; None for a text that is not a key."""
    found = _KEY.fullmatch(text)
    return None if found is None else PresentedKey(found.group(1), found.group(2))


def new_key() -> PresentedKey:
    """Return a new random key."""
    return PresentedKey(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(SECRET_BYTES))


def written(key: PresentedKey) -> str:
    """Return a key as clients send it."""
    return f"hr_{key.id}_{key.secret}"


def digest_of(secret: str) -> bytes:
    """Return the hash of a secret that Redis has."""
    return hashlib.sha256(secret.encode()).digest()


def fields_of(key: ApiKey) -> dict[str, str]:
    """Return the fields of a key's record in Redis."""
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
        "tokens_per_minute": str(key.tokens_per_minute),
    }


def key_from(key_id: str, fields: Mapping[bytes, bytes]) -> ApiKey | None:
    """Return the key of a record; None for a record that cannot be read."""
    texts = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
    try:
        return ApiKey(
            id=key_id,
            name=texts["name"],
            digest=bytes.fromhex(texts["sha256"]),
            scopes=frozenset(Scope(scope) for scope in texts["scopes"].split(",") if scope),
            rate=float(texts["rate"]),
            in_flight=int(texts["in_flight"]),
            created_s=float(texts["created"]),
            expires_s=float(texts["expires"]),
            acts=texts["acts"] == "1",
            old_digest=bytes.fromhex(texts["old_sha256"]),
            old_until_s=float(texts["old_until"]),
            tokens_per_minute=int(texts["tokens_per_minute"]),
        )
    except (KeyError, ValueError):
        return None
