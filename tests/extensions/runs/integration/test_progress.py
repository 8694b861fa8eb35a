"""The record that a run writes of itself while it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from extensions.runs.cli.progress import RunProgressDisplay
from headrace import errors
from headrace.client import Client
from headrace.client.admin import report_run
from headrace.client.offline import RunProgress
from headrace.client.sync_client import run_plan
from tests.harness.servers.api_server import ApiServer


def test_a_cancel_is_kept_when_the_response_to_the_first_report_was_lost(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written_and_lost(*given: Any, **options: Any) -> Any:
        yield from report_run(*given, **options)
        monkeypatch.undo()
        raise errors.ServerUnreachable("no response within 2 s")

    engine: Any = SimpleNamespace(
        checkpoint=SimpleNamespace(run="run-a", model="echo", name="", output="o", started_at=1.0),
        progress=RunProgress(total=10),
        stop=Mock(),
    )
    with Client(api.url) as client:
        # A cancellation of an earlier process of this run ends with that process.
        run_plan(client, report_run(client.session, "run-a", {"model": "echo"}, begun=True))
        client.cancel_run("run-a")
        record = RunProgressDisplay(api.url, engine, quiet=True, source="s")
        monkeypatch.setattr("headrace.client.admin.report_run", written_and_lost)
        record.report("running")
        assert not client.run_record("run-a").cancel_requested
        client.cancel_run("run-a")
        record.report("running")
        engine.stop.assert_called_once_with(cancel=True)
