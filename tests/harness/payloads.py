"""What the account of payloads holds, and the time that passes for it in a test."""

from __future__ import annotations

from typing import Any

import redis

from headrace import keys


def noted(client: redis.Redis) -> list[str]:
    """The entries of the account."""
    found: Any = client.zrange(keys.PAYLOADS, 0, -1)
    return [text.decode() for text in found]


def make_due(client: redis.Redis) -> None:
    """As though the time of every payload to be looked at had come."""
    for text in noted(client):
        client.zadd(keys.PAYLOADS, {text: 0}, xx=True)
