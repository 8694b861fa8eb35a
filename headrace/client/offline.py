"""The records of offline runs, each call a plan; see steps.py. The runs are in headrace/runs."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from headrace.client.errors import decoded
from headrace.client.models import Run
from headrace.client.requests import JSON_HEADERS
from headrace.client.retries import Session, exchange
from headrace.client.sansio import HttpRequest, Plan

RUNS: Final = "/api/v1/runs"


class _Runs(msgspec.Struct):
    runs: list[Run]


class _RunRecord(msgspec.Struct):
    cancel_requested: bool = False


def runs(session: Session) -> Plan[list[Run]]:
    """The offline runs that this server knows of, that told last first."""
    return decoded((yield from exchange(session, HttpRequest("GET", RUNS))), _Runs).runs


def run_record(session: Session, run_id: str) -> Plan[Run]:
    """One offline run, as it told last.

    Raises:
        RunNotFound: there is none of that id.
    """
    return decoded((yield from exchange(session, HttpRequest("GET", _path(run_id)))), Run)


def cancel_run(session: Session, run_id: str) -> Plan[Run]:
    """Ask for an offline run's end; its process stops within seconds.

    Raises:
        RunNotFound: there is none of that id.
    """
    request = HttpRequest("POST", f"{_path(run_id)}/cancel")
    return decoded((yield from exchange(session, request)), Run)


def report_run(session: Session, run_id: str, record: Any, *, begun: bool) -> Plan[bool]:
    """Write a run's record; return whether its cancellation was requested."""
    query = {"begun": "1"} if begun else {}
    body = msgspec.json.encode(record)
    request = HttpRequest("PUT", _path(run_id), query, body, JSON_HEADERS)
    return decoded((yield from exchange(session, request)), _RunRecord).cancel_requested


def _path(run_id: str) -> str:
    return f"{RUNS}/{quote(run_id, safe='')}"
