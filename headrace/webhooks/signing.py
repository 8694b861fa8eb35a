"""Signatures by the Standard Webhooks scheme (v1, HMAC-SHA256), and their secrets.

Each API key has its own secret, derived from the server's and the key's id. So a receiver cannot
sign webhooks for other keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"
#: From the scheme.
SECRET_MIN_BYTES: Final = 24
SECRET_MAX_BYTES: Final = 64
_DERIVED: Final = b"headrace webhook secret of key "


def new_secret() -> str:
    """Return a new random secret."""
    return written(secrets.token_bytes(32))


def written(secret: bytes) -> str:
    """Return a secret as text."""
    return PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str) -> bytes:
    """Return the bytes of a secret; raise ValueError, which does not repeat it, for other text."""
    try:
        found = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not text.startswith(PREFIX) or not SECRET_MIN_BYTES <= len(found) <= SECRET_MAX_BYTES:
        raise ValueError(
            f"expected {PREFIX} and {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes in base64, "
            "as `headrace webhooks secret --new` prints it"
        )
    return found


def secrets_of(texts: Sequence[str], key_id: str = "") -> list[bytes]:
    """Return the secrets that sign an API key's webhooks, or with "" the server's, newest first."""
    server = [read_secret(text) for text in texts]
    if not key_id:
        return server
    return [hmac.digest(secret, _DERIVED + key_id.encode(), hashlib.sha256) for secret in server]


def signature(found: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return the header `webhook-signature`: a signature per secret, separated by blanks."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp_s, body)
    digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in found)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
