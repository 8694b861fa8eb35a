"""Why jobs failed, and the retry of all jobs that failed for one reason."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from urllib.parse import quote

from headrace.client.calls import moment
from headrace.client.http.retries import Session, fetch
from headrace.client.sansio import HttpRequest, Plan
from headrace.schema.operation import FailureGroups, FailuresOfGroup, Retried

FAILURES: Final = "/api/v1/failures"


def failures(
    session: Session,
    model: str | None = None,
    *,
    since: datetime | float | str | None = None,
    error: str | None = None,
    limit: int | None = None,
) -> Plan[list[FailuresOfGroup]]:
    """Return why jobs failed: groups of failures, the one that failed last first.

    Args:
        model: only failures of this model.
        since: only jobs that failed at this time or later; as for `jobs`.
        error: only groups with this text in type, message, exception or line.
        limit: maximum number of groups, at most 1,000; None for the server's default.

    Raises:
        ModelNotFound: the model does not exist.
        ListsOff: the server keeps no failures.
    """
    given = {
        "model": model,
        "since": None if since is None else moment(since),
        "error": error,
        "limit": None if limit is None else str(limit),
    }
    query = {name: value for name, value in given.items() if value is not None}
    request = HttpRequest("GET", FAILURES, query=query)
    return (yield from fetch(session, request, FailureGroups)).failures


def retry_failures(session: Session, group: str | FailuresOfGroup) -> Plan[Retried]:
    """Put all jobs of a group back at the end of their queues as the same jobs.

    A job keeps its id, its input and its metadata; its attempts start at 0.

    Returns:
        How many are retried, and which are not and why. If an answer was lost and the request was
        repeated, those of the first request are not counted.

    Raises:
        ModelNotFound: the model of the group does not exist.
    """
    name = group if isinstance(group, str) else group.group
    path = f"{FAILURES}/{quote(name, safe='')}/retry"
    return (yield from fetch(session, HttpRequest("POST", path), Retried))
