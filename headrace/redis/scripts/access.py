"""The script in access/: what its call is sent, and what it replies."""

from __future__ import annotations

from headrace.redis.scripts import Command, script


def take_tokens(key_id: str, rate: float, wanted: int, least: int) -> Command:
    """Take tokens of an API key's rate; the reply is [how many, us until `least` are there].

    Args:
        key_id: the API key.
        rate: tokens a second.
        wanted: how many tokens are wanted.
        least: the fewest that are of use.
    """
    return script("access/take_tokens").call([], key_id, repr(rate), wanted, least)
