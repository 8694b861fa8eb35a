"""Registered models as typed objects, and plans that register, change, reload and remove them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.client.http.events import ServerEvent, follow
from headrace.client.http.retries import Session, decoded, exchange, fetch
from headrace.client.inputs import json_request
from headrace.client.sansio import HttpRequest, Plan, Stream
from headrace.schema.registry import (
    ModelDifference,
    ModelDifferences,
    ModelTraffic,
    Registration,
)


class ModelChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the registered models, in words, with its author.

    Attributes:
        event_id: as `last_event_id` of `model_events` it resumes after this change; "" from
            `model_changes`.
    """

    model: str
    what: str
    by: str
    at: datetime
    event_id: str = ""


class _Changes(msgspec.Struct):
    changes: list[ModelChange]


class _State(msgspec.Struct):
    state: str


def model_versions(session: Session, model: str) -> Plan[Registration]:
    """Return the registered versions of a model, and who changed it last.

    Raises:
        ModelNotFound: it is not registered.
    """
    return (yield from fetch(session, HttpRequest("GET", f"{_path(model)}/versions"), Registration))


def register_model(
    session: Session,
    model: str,
    version: str,
    options: dict[str, Any],
    *,
    wait: float | None = None,
) -> Plan[Registration]:
    """Register a version of a model, or replace it and load it again.

    Args:
        options: its options, as in the models file; `handler` is required.
        wait: seconds to wait for the workers; see `reload_model`.

    Raises:
        Forbidden: the server does not allow it (`model_api`).
        InvalidRequest: an option is wrong.
    """
    return (yield from _change(session, "PUT", _path(model, version), {"options": options}, wait))


def set_model_options(
    session: Session,
    model: str,
    options: dict[str, Any],
    *,
    version: str = "",
    wait: float | None = None,
) -> Plan[Registration]:
    """Set options of a version, such as `replicas`; None takes a change back.

    Args:
        version: the version; by default the default version.
        wait: seconds to wait for the workers; see `reload_model`.

    Raises:
        ModelNotFound: it is not registered.
        InvalidRequest: an option is wrong.
    """
    body = {"options": options, **({"version": version} if version else {})}
    return (yield from _change(session, "PATCH", _path(model), body, wait))


def promote_model(
    session: Session, model: str, version: str, *, wait: float | None = None
) -> Plan[Registration]:
    """Make a version the default one; the workers switch when it is loaded.

    Args:
        wait: seconds to wait for the workers; see `reload_model`.

    Raises:
        ModelNotFound: the model or the version is not registered.
    """
    body = {"default_version": version}
    return (yield from _change(session, "PATCH", _path(model), body, wait))


def reload_model(
    session: Session, model: str, *, version: str = "", wait: float | None = None
) -> Plan[Registration]:
    """Start new model processes; the old ones serve until these are ready.

    Args:
        version: the version; by default the default version.
        wait: seconds to wait until the workers serve the change, or cannot load it; the server
            limits it to its `max_wait_s`. The answer has `state` and `error`. None: no wait.

    Raises:
        ModelNotFound: it is not registered.
    """
    query = {**({"version": version} if version else {}), **_wait(wait)}
    request = HttpRequest("POST", f"{_path(model)}/reload", query, wait_s=wait or 0)
    return (yield from fetch(session, request, Registration))


def remove_model(
    session: Session, model: str, *, version: str = "", wait: float | None = None
) -> Plan[str]:
    """Remove a model, or one version of it. Jobs that wait stay in their queue.

    Args:
        version: the version; "" for all.
        wait: seconds to wait until no worker serves it any more; the server limits it to its
            `max_wait_s`. None: no wait.

    Returns:
        With `wait`: "ready" if no worker serves it any more, or "pending" if the time was too
        short; else "".

    Raises:
        ModelNotFound: it is not registered.
        Conflict: a pipeline uses it, or the version is the default of several.
    """
    request = HttpRequest("DELETE", _path(model, version), _wait(wait), wait_s=wait or 0)
    answer = yield from exchange(session, request)
    if wait is None:
        return ""
    return "ready" if answer.status == 204 else decoded(answer, _State).state


def model_changes(session: Session, *, limit: int = 100) -> Plan[list[ModelChange]]:
    """Return the newest changes of the registered models, the last one first."""
    request = HttpRequest("GET", "/api/v1/registry/changes", {"limit": str(limit)})
    return (yield from fetch(session, request, _Changes)).changes


def model_events(session: Session, *, last_event_id: str | None = None) -> Stream[ModelChange]:
    """Yield each change of the registered models from now on, also while the server restarts.

    It has no end: leave the loop, or close the iterator.

    Args:
        last_event_id: `event_id` of the last known change; later ones are yielded first, as far
            back as the newest 1,000.

    Raises:
        ServerUnreachable: the server was unreachable for longer than `retry_s`.
    """
    yield from follow(session, "/api/v1/registry/events", last_event_id, _model_change)


def _model_change(event: ServerEvent) -> tuple[list[ModelChange], bool]:
    if event.name != "change":
        return [], False  # of a newer server
    return [msgspec.convert({**event.data, "event_id": event.event_id}, ModelChange)], False


def model_differences(session: Session) -> Plan[list[ModelDifference]]:
    """Return where the registered models differ from the models file that was applied last."""
    request = HttpRequest("GET", "/api/v1/registry/differences")
    return (yield from fetch(session, request, ModelDifferences)).differences


def model_traffic(session: Session, model: str) -> Plan[ModelTraffic]:
    """Return where the jobs of a model go that name no version.

    Raises:
        ModelNotFound: it is not registered.
    """
    return (yield from fetch(session, HttpRequest("GET", f"{_path(model)}/traffic"), ModelTraffic))


def route_model(
    session: Session,
    model: str,
    weights: Mapping[str, float],
    *,
    sticky: Mapping[str, str] | None = None,
    shadow: str | None = None,
    shadow_percent: float = 100.0,
    generation: int | None = None,
    wait: float | None = None,
) -> Plan[ModelTraffic]:
    """Share the jobs that name no version among versions; this replaces the present traffic.

    Args:
        weights: the share of each version, relative to the others; none: the default version.
        sticky: what a user is recognised by: `{"header": NAME}` or `{"metadata": KEY}`.
        shadow: a version that gets copies of such jobs, whose results are compared and counted.
        shadow_percent: how many of the jobs are copied.
        generation: refuse the change if the model has another generation.
        wait: seconds to wait until the workers serve all these versions; see `reload_model`.

    Raises:
        ModelNotFound: the model or a version is not registered.
        Conflict: the model has another generation, or is changed at this moment.
        InvalidRequest: a weight is wrong.
    """
    body: dict[str, Any] = {"weights": dict(weights)}
    if sticky:
        body["sticky"] = dict(sticky)
    if shadow is not None:
        body |= {"shadow": shadow, "shadow_percent": shadow_percent}
    headers = {} if generation is None else {"if-match": f'"{generation}"'}
    path = f"{_path(model)}/traffic"
    request = json_request("PUT", path, body, _wait(wait), headers, wait_s=wait or 0)
    return (yield from fetch(session, request, ModelTraffic))


def clear_traffic(session: Session, model: str, *, wait: float | None = None) -> Plan[ModelTraffic]:
    """Return to the traffic of the models file, or to the default version.

    Args:
        wait: seconds to wait until the workers serve these versions; see `reload_model`.

    Raises:
        ModelNotFound: it is not registered.
    """
    request = HttpRequest("DELETE", f"{_path(model)}/traffic", _wait(wait), wait_s=wait or 0)
    return (yield from fetch(session, request, ModelTraffic))


def _change(
    session: Session, method: str, path: str, body: dict[str, Any], wait: float | None
) -> Plan[Registration]:
    request = json_request(method, path, body, _wait(wait), wait_s=wait or 0)
    return (yield from fetch(session, request, Registration))


def _wait(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"wait": f"{seconds:g}"}


def _path(model: str, version: str = "") -> str:
    path = f"/api/v1/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path
