"""The script in workers/: what its call is sent."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.redis import keys
from headrace.redis.scripts import Arg, Command, script


def report(owner: str, fields: Sequence[Arg], counted: Sequence[Arg] = ()) -> Command:
    """Report a worker's state, for WORKER_TTL_S seconds.

    Args:
        owner: this incarnation of the worker.
        fields: names and values of its hash.
        counted: for each counter its key, its field, and by how much it grows.
    """
    head = (owner, keys.WORKER_TTL_S, len(fields))
    return script("workers/report").call([], *head, *fields, *counted)
