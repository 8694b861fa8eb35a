"""Sequences of requests over two workers and two API processes: their process and their limits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

#: Keeps a list for each sequence, until its end. A request with `until` waits for that file.
HANDLER = """
import os, time

def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    answers = []
    for idx, row in enumerate(data):
        sequence = context.get_sequence_id(idx)
        while row["body"].get("until") and not os.path.exists(row["body"]["until"]):
            time.sleep(0.005)
        if context.get_request_header(idx, context.header_key_sequence_start) == "true":
            context.cache[sequence] = []
        values = context.cache.setdefault(sequence, [])
        values.append(row["body"]["value"])
        answers.append({"sequence": sequence, "values": list(values), "pid": os.getpid()})
        end = context.get_request_header(idx, context.header_key_sequence_end)
        if end:
            del context.cache[sequence]
        if end == "replied":
            context.set_response_header(idx, context.header_key_sequence_end, sequence)
    return answers
"""


#: The model-config.yaml of each model.
CONFIGS = {
    "m": "",
    "brief": "sequenceMaxIdleMSec: 200\nmaxNumSequence: 2\n",
    "single": "sequenceMaxIdleMSec: 600000\n",
}
ASYNC = {"Prefer": "respond-async"}


@dataclass
class Site:
    api: ApiServer
    other_api: ApiServer
    workers: tuple[Worker, Worker]

    def send(
        self,
        api: ApiServer,
        model: str,
        sequence: str,
        value: Any,
        *,
        until: str = "",
        headers: Mapping[str, str] = ASYNC,
        start: str = "",
        end: str = "",
    ) -> httpx2.Response:
        """Send a request of a sequence."""
        given = {"id": sequence, "start": start, "end": end}
        named = {f"ts_request_sequence_{name}": text for name, text in given.items() if text}
        return api.http.post(
            f"/predictions/{model}",
            json={"value": value, "until": until},
            headers={**named, **headers},
        )

    def submit(
        self, sequence: str, value: Any, until: str = "", start: str = "", end: str = ""
    ) -> str:
        """Submit a request; return its job."""
        answer = self.send(self.api, "m", sequence, value, until=until, start=start, end=end)
        assert answer.status_code == 202, answer.text
        return str(answer.headers["headrace-job"])

    def result(self, job_id: str) -> dict[str, Any]:
        """The result of a job, which must succeed."""
        found = self.api.ended(job_id)
        assert found["status"] == "succeeded", found
        result: dict[str, Any] = found["result"]
        return result

    def ask(self, sequence: str, value: Any, end: str = "") -> dict[str, Any]:
        return self.result(self.submit(sequence, value, end=end))

    def host(self, pid: int) -> Worker:
        """The worker that has the model process."""

        def found() -> Worker | None:
            have = [one for one in self.workers if pid in one.states().get("m", {}).get("pids", ())]
            return have[0] if have else None

        worker = wait_until(found, "a worker has the process", 120)
        assert worker is not None
        return worker


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    sources = {}
    for name, limits in CONFIGS.items():
        config = f"sequenceBatching: true\nbatchSize: 4\nmaxBatchDelay: 5\n{limits}"
        files = {"handler.py": HANDLER, "c.yaml": config}
        archive = write_archive(tmp_path / name, "handler.py", files, configFile="c.yaml")
        sources[name] = {"source": str(archive)}
    models = write_models(tmp_path, **sources)
    file = tmp_path / "config.properties"
    write_config(file, TorchServeConfig(disable_token_authorization=True))
    with redis_server() as server:
        state = tmp_path / "state"
        settings = Settings(redis_url=server.url, models_file=models, state_dir=state)
        environ = {
            "HEADRACE_TORCHSERVE": str(file), "HEADRACE_STATE_DIR": str(state),
            "HEADRACE_LEASE_TTL_S": "2",
        }  # fmt: skip
        (tmp_path / "one").mkdir()
        (tmp_path / "other").mkdir()
        with (
            celery_worker(
                server.url, models, tmp_path / "one", node="one@test", environ=environ
            ) as one,
            celery_worker(
                server.url, models, tmp_path / "other", node="other@test", environ=environ
            ) as other,
            api_server(
                server.url, load_models(settings), torchserve=file, models_file=models,
                state_dir=state,
            ) as api,
            api_server(
                server.url, load_models(settings), torchserve=file, models_file=models,
                state_dir=state,
            ) as other_api,
            Client(server.url, models) as client,
        ):  # fmt: skip
            yield Site(api, other_api, (one, other))
            nothing_leaks(client.redis)


def test_sequences_stay_with_one_process_until_it_dies(site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ids = [site.submit("a", 0, str(gate), start="true")]
    ids += [site.submit("ab"[n % 2], n) for n in range(1, 7)]
    gate.touch()
    found = [site.result(one) for one in ids]
    assert [one["values"] for one in found if one["sequence"] == "a"] == [
        [0], [0, 2], [0, 2, 4], [0, 2, 4, 6],
    ]  # fmt: skip
    assert [one["values"] for one in found if one["sequence"] == "b"] == [[1], [1, 3], [1, 3, 5]]
    assert len({one["pid"] for one in found}) == 1

    assert site.ask("a", 7, end="true")["values"] == [0, 2, 4, 6, 7]
    assert site.ask("a", 8)["values"] == [8]
    own = site.ask("", 1)
    assert own["sequence"].startswith("ts-seq-")
    assert own["values"] == [1]

    # The process dies: its state is gone, and the next request of a sequence begins it anew.
    os.kill(found[0]["pid"], signal.SIGKILL)
    after = site.ask("b", 9)
    assert (after["values"], after["pid"] != found[0]["pid"]) == ([9], True)

    # Its worker dies with it: the other one takes over. Either has started the new process.
    site.host(after["pid"]).kill()
    taken_over = site.ask("b", 10)
    assert taken_over["values"] == [10]
    assert taken_over["pid"] != after["pid"]
    assert site.ask("b", 11)["values"] == [10, 11]


def test_the_limits_of_a_model_count_over_all_api_processes(site: Site, tmp_path: Path) -> None:
    api, other, gate = site.api, site.other_api, tmp_path / "gate"
    until = str(gate)
    taken = [
        site.send(api, "brief", "a", 0, until=until),
        site.send(other, "brief", "b", 0, until=until),
        site.send(other, "brief", "a", 1, until=until),
    ]
    assert [one.status_code for one in taken] == [202, 202, 202]
    for each in (api, other):
        refused = site.send(each, "brief", "c", 0)
        assert refused.status_code == 503
        assert refused.json()["type"] == "ServiceUnavailableException"
        assert "as many sequences as maxNumSequence allows: 2." in refused.json()["message"]
        refused = site.send(each, "brief", "a", 2)
        assert refused.status_code == 503
        assert refused.json()["type"] == "ServiceUnavailableException"
        assert "the sequence 'a' of model brief has 2 requests" in refused.json()["message"]
    gate.touch()
    found = [site.result(one.headers["headrace-job"]) for one in taken]
    assert [one["values"] for one in found] == [[0], [0], [0, 1]]

    # Nobody ends a and b: their silence does.
    later = wait_until(
        lambda: one if (one := site.send(other, "brief", "c", 0)).status_code == 202 else None,
        "there is room for another sequence", 120,
    )  # fmt: skip
    assert later is not None
    assert site.result(later.headers["headrace-job"])["values"] == [0]


def test_a_reply_ends_a_sequence_and_a_refused_request_is_none(site: Site) -> None:
    api, other = site.api, site.other_api
    key = {"Idempotency-Key": "one"}
    assert site.send(api, "single", "a", 0, headers=key).json()["values"] == [0]
    again = site.send(other, "single", "a", 0, headers=key)
    assert (again.status_code, again.json()["values"]) == (200, [0])
    assert site.send(other, "single", "b", 0).status_code == 503
    assert site.send(other, "single", "a", 1, headers={}, end="replied").json()["values"] == [0, 1]
    # Another body under the same key.
    assert site.send(api, "single", "b", 9, headers=key).status_code == 409
    assert site.send(other, "single", "c", 0, headers={}).json()["values"] == [0]
