"""schemathesis calls the server by its own description, and compares what comes with it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from api.http.problems import PROBLEMS
from api.openapi import SCHEMAS, document
from api.openapi.problems import JOB_PROBLEMS
from headrace import __version__
from headrace.redis import keys
from headrace.webhooks.signing import new_secret
from tests.harness.fakes.worker import FakeWorker, publish_state
from tests.harness.servers.api_server import ApiServer, api_server, catalog
from tests.harness.servers.redis_servers import RedisServer

SEED = 20261121
EXAMPLES_PER_ROUTE = 10
#: On a machine that is busy with other things; alone it takes a fraction of that.
RUN_TIMEOUT_S = 360


@pytest.fixture
def api(redis_db: RedisServer) -> Iterator[ApiServer]:
    """An API whose jobs end, with models that are ready, and waits that are over soon."""
    models = catalog(echo={}, tiny={"max_queue_depth": 1})
    with (
        FakeWorker(redis_db.url, "echo"),
        api_server(
            redis_db.url,
            models,
            max_wait_s=0.2,
            bulk_hold_s=0.2,
            webhook_secrets=(new_secret(),),
            event_stream_max_s=0.2,
        ) as server,
        redis_db.client() as client,
    ):
        for model in ("echo", "tiny"):
            publish_state(client, "w1", model, "ready")
        client.expire(keys.worker("w1"), RUN_TIMEOUT_S * 2)
        yield server


def strict(schema: Any) -> Any:
    """The same without room for members that the description does not know.

    Clients are to pass over what is new; the server may not say what is not described.
    """
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if "object" in found.get("type", "") and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def configuration() -> str:
    """What is no mistake of a route, though it looks like one."""
    ended = sorted({PROBLEMS[code].status for code in JOB_PROBLEMS})
    return f"""
hooks = "tests.harness.clients.conformance_hooks"
seed = {SEED}

[generation]
max-examples = {EXAMPLES_PER_ROUTE}

# DELETE cancels: a cancelled job is still there.
[checks.use_after_free]
enabled = false

# A dead letter may be called `requeue` or `purge`, and a job `bulk`, `status`, `cancel` and so on:
# it can be got and removed at that path.
[[operations]]
include-operation-id = [
    "requeue_dead_letters", "purge_dead_letters", "submit_bulk", "read_many", "cancel_many",
    "read_outcomes", "forget_many",
]
[operations.checks.allow_header_conformance]
enabled = false

# Of a bulk request no body is wrong: each line has an answer of its own.
[[operations]]
include-operation-id = "submit_bulk"
[operations.checks.negative_data_rejection]
enabled = false

# A body names a file or batch that is not there: by OpenAI's conventions 400, with the member.
[[operations]]
include-operation-id = "create_batch"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404]

# The output of a job that did not succeed is its problem; a range may lie behind the end.
[[operations]]
include-operation-id = "get_result"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 416, {", ".join(map(str, ended))}]
[operations.checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", {", ".join(str(status) for status in ended if status >= 500)}]
"""


@pytest.mark.timeout(RUN_TIMEOUT_S)
@pytest.mark.leaves_keys
def test_the_server_conforms_to_its_description(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Here, since no other process of the tests needs it.
    from schemathesis.cli import schemathesis

    described = document(__version__)
    described["components"]["schemas"].update(strict(SCHEMAS))
    monkeypatch.chdir(tmp_path)
    Path("openapi.json").write_text(json.dumps(described))
    Path("schemathesis.toml").write_text(configuration())
    # Its command, but not as a process: that would import it, and our hooks the API, once more.
    ended = CliRunner().invoke(
        schemathesis, ["run", "openapi.json", "--url", api.url, "--no-color"]
    )
    if ended.exception is not None:
        traceback.print_exception(ended.exception)
    assert ended.exit_code == 0, ended.output[-14_000:]
    operations = sum(
        method != "parameters" for methods in described["paths"].values() for method in methods
    )
    assert f"Tested: {operations}" in ended.output, ended.output[-3000:]
