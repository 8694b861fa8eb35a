"""Triton's own HTTP client against a real server, with real workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

from tests.harness.clients.commands import CommandsWithin
from tests.harness.servers.api_server import ApiServer
from tests.harness.wait import wait_until


@pytest.fixture
def client(api: ApiServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(api.url.removeprefix("http://")) as found:
        yield found


def given(name: str, datatype: str, array: Any, *, binary: bool = True) -> triton.InferInput:
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


ONES = np.ones((2, 16), np.int32)
COUNT = np.arange(32, dtype=np.int32).reshape(2, 16)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_raw_tensors_and_lists_go_together(
    client: triton.InferenceServerClient, compression: str | None
) -> None:
    found = client.infer(
        "simple",
        [given("INPUT0", "INT32", COUNT), given("INPUT1", "INT32", ONES, binary=False)],
        outputs=[
            triton.InferRequestedOutput("OUTPUT1", binary_data=False),
            triton.InferRequestedOutput("OUTPUT0", binary_data=True),
        ],
        request_id="7",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert (found.as_numpy("OUTPUT0") == COUNT + 1).all()
    assert (found.as_numpy("OUTPUT1") == COUNT - 1).all()
    answer = found.get_response()
    assert [one["name"] for one in answer["outputs"]] == ["OUTPUT1", "OUTPUT0"]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "simple", "1.0")


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.arange(6, dtype=np.float32).reshape(2, 3)),
        ("FP16", np.arange(6, dtype=np.float16).reshape(3, 2)),
        ("BF16", np.arange(4).reshape(2, 2).astype(ml_dtypes.bfloat16)),
        ("INT64", np.array([[-(2**63), 2**63 - 1]])),
        ("UINT8", np.zeros((0, 4), np.uint8)),
        ("BOOL", np.array([[True, False]])),
        ("BYTES", np.array([[b"a", b""], ["ä".encode(), b"\xff\0"]], np.object_)),
        # Beyond inline_limit_bytes.
        ("FP32", np.arange(40_000, dtype=np.float32).reshape(4, 10_000)),
    ],
)
def test_each_datatype_comes_back(
    client: triton.InferenceServerClient, datatype: str, array: Any
) -> None:
    found = client.infer(f"identity_{datatype.lower()}", [given("INPUT0", datatype, array)])
    again = found.as_numpy("OUTPUT0")
    assert again.shape == array.shape
    assert (again == array).all()


def test_a_program_without_a_handler_gets_rows(client: triton.InferenceServerClient) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    for count in (3, 0):
        found = client.infer("doubled", [given("x", "FP32", rows[:count])]).as_numpy("y")
        assert found.tolist() == (rows[:count] * 2).tolist()


def test_the_asynchronous_client_works_too(api: ApiServer) -> None:
    async def infer() -> Any:
        async with aio.InferenceServerClient(api.url.removeprefix("http://")) as client:
            inputs = [aio.InferInput(f"INPUT{n}", [2, 16], "INT32") for n in range(2)]
            for one in inputs:
                one.set_data_from_numpy(COUNT)
            results = [client.infer("simple", inputs, request_id=str(n)) for n in range(4)]
            return await asyncio.gather(*results)

    found = asyncio.run(infer())
    assert [one.get_response()["id"] for one in found] == ["0", "1", "2", "3"]
    assert all((one.as_numpy("OUTPUT0") == COUNT * 2).all() for one in found)


def test_a_handler_that_fails_is_an_error_of_the_server(api: ApiServer) -> None:
    job = {"inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [1, 1], "data": [7]}]}
    answer = api.http.post("/v2/models/wrong/infer", json=job)
    assert answer.status_code == 500
    assert answer.json() == {"error": "the output OUTPUT0 is UINT8, but the model declares FP32"}
    assert api.job(answer.headers["headrace-job"])["status"] == "failed"


def test_the_best_classes_of_an_output(client: triton.InferenceServerClient) -> None:
    found = client.infer(
        "simple",
        [given("INPUT0", "INT32", COUNT), given("INPUT1", "INT32", ONES)],
        outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=2)],
    )
    assert found.as_numpy("OUTPUT0").tolist() == [[b"16:15", b"15:14"], [b"32:15", b"31:14"]]


def test_a_model_without_tensors_has_one_input_and_one_output(
    client: triton.InferenceServerClient,
) -> None:
    for value, result in ((b'{"a": [1, null]}', b'{"a":[1,null]}'), (b"\xff\0", b"\xff\0")):
        found = client.infer("echo", [given("data", "BYTES", np.array([value], np.object_))])
        assert found.as_numpy("result").tolist() == [result]


def test_errors_have_tritons_texts(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer("nope", [given("data", "INT32", ONES)])
    assert refused.value.message() == "Request for unknown model: 'nope' is not found"
    with pytest.raises(InferenceServerException) as refused:
        client.infer("simple", [given("INPUT0", "FP32", ONES.astype(np.float32))])
    assert "missing required input(s) ['INPUT1']" in refused.value.message()


def test_the_server_and_its_models_describe_themselves(
    client: triton.InferenceServerClient,
) -> None:
    assert client.is_server_live()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1"), "clients of Triton count versions"
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata()["name"] == "triton"
    metadata, config = client.get_model_metadata("simple"), client.get_model_config("simple")
    assert metadata["inputs"][1] == {"name": "INPUT1", "datatype": "INT32", "shape": [-1, 16]}
    assert (metadata["versions"], config["max_batch_size"]) == (["1.0"], 8)
    assert config["output"][0] == {"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [16]}
    assert client.get_model_metadata("echo")["inputs"] == [
        {"name": "data", "datatype": "BYTES", "shape": [1]}
    ]
    assert client.get_system_shared_memory_status() == []
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
        client.register_system_shared_memory("a", "/a", 4)


def test_statistics_are_those_of_the_counters(client: triton.InferenceServerClient) -> None:
    def statistics() -> Any:
        (found,) = client.get_inference_statistics("identity_int64")["model_stats"]
        return {**found, "success": found["inference_stats"]["success"]["count"]}

    wait_until(lambda: statistics()["success"] == statistics()["execution_count"], "all is counted")
    before = statistics()
    for _ in range(3):
        client.infer("identity_int64", [given("INPUT0", "INT64", np.ones((2, 1), np.int64))])
    counted = {"success": 3, "execution_count": 3, "inference_count": 6}
    wait_until(
        lambda: all(statistics()[key] == before[key] + by for key, by in counted.items()),
        "the jobs, the batches and their rows are counted",
    )
    assert statistics()["inference_stats"]["queue"]["ns"] > 0


def test_a_model_is_unloaded_and_loaded_again(client: triton.InferenceServerClient) -> None:
    inputs = [given("INPUT0", "UINT8", np.ones((1, 1), np.uint8))]
    client.unload_model("identity_uint8")
    assert not client.is_model_ready("identity_uint8")
    (row,) = (one for one in client.get_model_repository_index() if one["name"] == "identity_uint8")
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    with pytest.raises(InferenceServerException, match="'identity_uint8' has no available versio"):
        client.infer("identity_uint8", inputs)
    for _ in range(2):  # the second time it is loaded anew
        client.load_model("identity_uint8")
        assert client.is_model_ready("identity_uint8")
        assert client.infer("identity_uint8", inputs).as_numpy("OUTPUT0").tolist() == [[1]]
    with pytest.raises(InferenceServerException, match="failed to load 'nope', failed to poll"):
        client.load_model("nope")


def test_the_native_api_and_the_declaration_know_the_same_tensors(api: ApiServer) -> None:
    rows = COUNT.tolist()
    job = api.http.post(
        "/api/v1/models/simple/jobs?wait=60", json={"INPUT0": rows, "INPUT1": rows}
    ).json()
    assert job["result"]["OUTPUT0"] == (COUNT * 2).tolist()
    short = api.http.post("/api/v1/models/simple/jobs", json={"INPUT0": [[1]], "INPUT1": rows})
    assert short.json()["type"].endswith("invalid-input")


def test_headrace_bench_measures_by_the_protocol(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "in.bin").write_bytes(b"\x00\x01")
    ended = CommandsWithin(api.url, tmp_path).run(
        "bench", "echo", "-i", "in.bin", "--protocol", "triton", "--scenario", "closed:2",
        "--requests", "20", "--json", "out.json",
    )  # fmt: skip
    assert ended.returncode in (0, 1), ended.stderr
    (load,) = json.loads((tmp_path / "out.json").read_text())["loads"]
    assert load["succeeded"] == load["requests"] > 0
