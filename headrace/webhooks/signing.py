"""Signing by the Standard Webhooks scheme (v1, HMAC-SHA256), and its secrets.

Where jobs belong to API keys, each key has a secret of its own, which follows from the server's and
the key's id: who can verify what is sent to him can sign nothing that others would believe.
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
#: As the scheme has it.
SECRET_MIN_BYTES: Final = 24
SECRET_MAX_BYTES: Final = 64
_DERIVED: Final = b"headrace webhook secret of key "


def new_secret() -> str:
    """A secret that nobody else has."""
    return written(secrets.token_bytes(32))


def written(secret: bytes) -> str:
    """A secret as people pass it on."""
    return PREFIX + base64.b64encode(secret).decode()


def read_secret(text: str) -> bytes:
    """A secret's bytes.

    Raises:
        ValueError: it is none; the sentence does not repeat it.
    """
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
    """The secrets by which what is sent for a key is signed, the newest first.

    Args:
        texts: the server's.
        key_id: the API key whose job it is; "" for nobody's, where the server's own are used.
    """
    own = [read_secret(text) for text in texts]
    if not key_id:
        return own
    return [hmac.digest(secret, _DERIVED + key_id.encode(), hashlib.sha256) for secret in own]


def signature(found: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The header `webhook-signature`: a signature for each secret, between blanks."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp_s, body)
    digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in found)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
