"""Plans for operators: workers, API keys, and who changed what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from headrace.client.calls import Page, list_pages
from headrace.client.http.retries import Session, decoded, exchange, fetch
from headrace.client.inputs import json_request
from headrace.client.sansio import HttpRequest, HttpResponse, Plan, Stream
from headrace.schema.deployment import (
    ApiKeyEntry,
    ApiKeys,
    Audit,
    AuditEntry,
    CreatedApiKey,
    KeySelf,
    Worker,
    Workers,
)

_WORKERS: Final = "/api/v1/workers"
_KEYS: Final = "/api/v1/keys"
_AUDIT: Final = "/api/v1/audit"


def workers(session: Session) -> Plan[list[Worker]]:
    """Return the live workers with their devices, models and processes, by node."""
    return (yield from fetch(session, HttpRequest("GET", _WORKERS), Workers)).workers


def drain_worker(session: Session, worker: str | Worker) -> Plan[Worker]:
    """Let a worker claim nothing more; it finishes what runs, and keeps running.

    Args:
        worker: an item of `workers()`, its name, or that of its node.

    Raises:
        WorkerNotFound: no such worker runs.
        Conflict: it is a background worker, or of an older version.
    """
    return (yield from _change_worker(session, worker, "drain"))


def resume_worker(session: Session, worker: str | Worker) -> Plan[Worker]:
    """Let a drained worker claim jobs again; it takes effect within a second.

    Raises:
        WorkerNotFound: no such worker runs.
    """
    return (yield from _change_worker(session, worker, "resume"))


def _change_worker(session: Session, worker: str | Worker, verb: str) -> Plan[Worker]:
    name = worker if isinstance(worker, str) else worker.worker
    path = f"{_WORKERS}/{quote(name, safe='')}/{verb}"
    return (yield from fetch(session, HttpRequest("POST", path), Worker))


def own_key(session: Session) -> Plan[KeySelf]:
    """Return what this client's API key allows."""
    return (yield from fetch(session, HttpRequest("GET", f"{_KEYS}/self"), KeySelf))


def api_keys(session: Session) -> Plan[list[ApiKeyEntry]]:
    """Return the API keys without their secrets, the oldest first."""
    return (yield from fetch(session, HttpRequest("GET", _KEYS), ApiKeys)).keys


def create_api_key(
    session: Session,
    name: str,
    scopes: Sequence[str] = ("submit", "read"),
    *,
    rate: float = 0.0,
    max_in_flight: int = 0,
    tokens_per_minute: int = 0,
    expires_in_s: int = 0,
) -> Plan[CreatedApiKey]:
    """Make an API key. Its text, `key`, cannot be read again. A limit of 0 is no limit.

    If an answer was lost and the request was repeated, there are two keys.

    Raises:
        InvalidRequest: the name or a limit is not valid.
        Conflict: the server requires no API keys.
    """
    body: dict[str, Any] = {
        "name": name,
        "scopes": list(scopes),
        "rate": rate,
        "max_in_flight": max_in_flight,
        "tokens_per_minute": tokens_per_minute,
        "expires_in_s": expires_in_s,
    }
    return (yield from fetch(session, json_request("POST", _KEYS, body), CreatedApiKey))


def revoke_api_key(session: Session, key: str | ApiKeyEntry) -> Plan[None]:
    """Revoke an API key at once; its jobs continue.

    Raises:
        KeyNotFound: no API key has this id.
        Conflict: a component of the deployment uses it, or the server requires no API keys.
    """
    name = key if isinstance(key, str) else key.id
    yield from exchange(session, HttpRequest("DELETE", f"{_KEYS}/{quote(name, safe='')}"))


def audit(
    session: Session,
    *,
    by: str | None = None,
    target: str | None = None,
    limit: int | None = None,
) -> Stream[AuditEntry]:
    """List who changed what, the newest first, page by page.

    Args:
        by: only changes by this API key.
        target: only changes of this queue, model, key or worker.
        limit: maximum number; None for all.
    """

    def read(answer: HttpResponse) -> Page[AuditEntry]:
        page = decoded(answer, Audit)
        return page.entries, page.cursor

    query = {name: value for name, value in (("by", by), ("target", target)) if value is not None}
    return list_pages(session, _AUDIT, read, limit=limit, query=query)
