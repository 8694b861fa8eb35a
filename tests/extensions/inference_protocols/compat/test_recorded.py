"""Our answers are those of a real Triton, which were recorded, or differ for a reason."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from headrace.config.model.catalog import load_catalog
from tests.extensions.inference_protocols.compat.cases import (
    CASES,
    DIFFERENT,
    RECORDED,
    Answer,
    ask,
)
from tests.extensions.inference_protocols.integration.conftest import HANDLERS
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import redis_server
from tests.harness.workers.worker import celery_worker, write_models

TRITON: Final = {
    name: Answer(*answer) for name, answer in json.loads(RECORDED.read_text("utf-8")).items()
}


def tensors(datatype: str, shape: list[int], *names: str) -> dict[str, Any]:
    return {"tensors": [{"name": one, "datatype": datatype, "shape": shape} for one in names]}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = tmp_path_factory.mktemp("triton")
    models = write_models(
        folder,
        simple={
            "handler": f"{HANDLERS}:AddSub",
            "version": "1",
            "max_batch_size": 8,
            "inputs": tensors("INT32", [-1, 16], "INPUT0", "INPUT1"),
            "outputs": tensors("INT32", [-1, 16], "OUTPUT0", "OUTPUT1"),
        },
        text={
            "handler": f"{HANDLERS}:Identity",
            "version": "1",
            "inputs": tensors("BYTES", [1], "INPUT0"),
            "outputs": tensors("BYTES", [1], "OUTPUT0"),
        },
    )
    with (
        redis_server() as redis,
        api_server(redis.url, load_catalog(models), models_file=models) as server,
        celery_worker(redis.url, models, folder) as worker,
    ):
        worker.wait_ready("simple", "text")
        yield server


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_that_of_triton(api: ApiServer, name: str) -> None:
    theirs, ours = TRITON[name], ask(api.http, CASES[name])
    if name in DIFFERENT:
        assert ours != theirs, "it is the same now"
        assert ours.status < 500 or ours.status == 501
        return
    if theirs.status == 500 and ours.status == 400:  # the client's mistake
        theirs = theirs._replace(status=400)
    assert ours == theirs


PIECES: Final = (
    b"[", b"]", b"{", b"-1", b"null", b"1e999", b"9" * 20, b"\\ud800", b"\xff", b'"', b"NaN",
)  # fmt: skip


def mutated(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body or b"{}")
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randint(1, 9)]
            case 2:
                changed[at:at] = chance.choice(PIECES)
            case _:
                changed[at : at + 1] *= chance.randint(1, 50)
    return bytes(changed)


def test_no_mutated_request_is_a_mistake_of_the_server(api: ApiServer) -> None:
    chance = random.Random(7)  # a failure comes again
    cases = list(CASES.values())
    for _ in range(400):
        case = chance.choice(cases)
        sent = mutated(case.body, chance)
        answer = api.http.request(case.method, case.path, content=sent, headers=case.headers)
        assert answer.status_code < 500 or answer.status_code == 501, (case.path, sent, answer.text)
    assert ask(api.http, CASES["lists"]) == TRITON["lists"], "it still serves"
