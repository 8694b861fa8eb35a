"""tritonclient's gRPC clients, unmodified, against an API process and a worker of its own."""

from __future__ import annotations

import asyncio
import queue
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import httpx2
import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from cryptography.x509 import load_der_x509_certificate
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from api.grpc.room import Room, own_port
from api.grpc.server import WATCHES_MAX
from headrace.access.api_key import Scope
from headrace.config.model.catalog import load_catalog
from headrace.config.settings import Settings
from headrace.server.ports import free_port
from tests.extensions.inference_protocols.integration.conftest import HANDLERS, tensors
from tests.harness.clients.access import make_key
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import ApiProcess, api_process, environ
from tests.harness.servers.certificates import Authority
from tests.harness.servers.redis_servers import RedisServer, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import celery_worker, write_models

SERVICE: Final = "inference.GRPCInferenceService"
COUNT: Final = np.arange(32, dtype=np.int32).reshape(2, 16)
ONES: Final = np.ones((2, 16), np.int32)
#: Clients that load a model at the same time.
LOADS: Final = 8


@dataclass(frozen=True)
class Site:
    """An API process with gRPC at `address`, and what it works on."""

    address: str
    process: ApiProcess
    redis: RedisServer
    models: Path

    def jobs(self, model: str, status: str) -> list[str]:
        url = f"{self.process.url}/api/v1/jobs?model={model}&status={status}"
        return [job["id"] for job in httpx2.get(url, verify=PLAIN).json()["jobs"]]

    def job(self, job_id: str) -> dict[str, Any]:
        url = f"{self.process.url}/api/v1/jobs/{job_id}"
        found: dict[str, Any] = httpx2.get(url, verify=PLAIN).json()
        return found


def models_of(folder: Path) -> Path:
    number = {"name": "COUNT", "datatype": "INT32", "shape": [1]}
    pieces = [
        {"name": "NUMBER", "datatype": "INT32", "shape": [-1]},
        {"name": "NAME", "datatype": "BYTES", "shape": [-1]},
    ]
    kinds = ("FP32", "FP16", "BF16", "INT8", "UINT64", "BOOL", "BYTES")
    identity = f"{HANDLERS}:Identity"
    return write_models(
        folder,
        echo={"handler": "echo"},
        waiting={"handler": "echo", "labels": ["host=none"]},
        full={"handler": "echo", "labels": ["host=none"], "max_queue_depth": 1},
        simple={
            "handler": f"{HANDLERS}:AddSub",
            "max_batch_size": 8,
            "inputs": tensors("INT32", [-1, 16], "INPUT0", "INPUT1"),
            "outputs": tensors("INT32", [-1, 16], "OUTPUT0", "OUTPUT1"),
        },
        half={
            "handler": f"{HANDLERS}:HalfPlusTwo",
            "max_batch_size": 8,
            "inputs": tensors("FP32", [-1], "x"),
            "outputs": tensors("FP32", [-1], "y"),
        },
        scores={
            "handler": f"{HANDLERS}:Scores",
            "inputs": tensors("FP32", [-1], "p"),
            "outputs": tensors("FP32", [-1, 2], "scores", labels=["cat", "dog"]),
        },
        counted={
            "handler": f"{HANDLERS}:Counted",
            "inputs": {"tensors": [number]},
            "outputs": {"tensors": pieces},
        },
        spelled={
            "handler": f"{HANDLERS}:Spelled",
            "inputs": tensors("BYTES", [1], "TEXT"),
            "outputs": tensors("BYTES", [1], "LETTER"),
        },
        **{
            f"identity_{kind.lower()}": {
                "handler": identity,
                "inputs": tensors(kind, [-1, -1], "INPUT0"),
            }
            for kind in kinds
        },
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("grpc")
    models, port = models_of(folder), free_port()
    with (
        redis_server() as redis,
        api_process(
            redis.url,
            models,
            inference_protocols_grpc_port=str(port),
            body_limit_bytes=str(1024 * 1024),
            state_dir=str(folder / "state"),
        ) as process,
        celery_worker(redis.url, models, folder) as worker,
    ):
        worker.wait_ready(*(load_catalog(models).models.keys() - {"waiting", "full"}))
        yield Site(f"127.0.0.1:{port}", process, redis, models)


@pytest.fixture
def client(site: Site) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(site.address) as found:
        yield found


@pytest.fixture
def stub(site: Site) -> Iterator[Any]:
    with grpc.insecure_channel(site.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def given(name: str, datatype: str, array: Any) -> triton.InferInput:
    found = triton.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def simple() -> list[triton.InferInput]:
    return [given("INPUT0", "INT32", COUNT), given("INPUT1", "INT32", ONES)]


def text(value: bytes = b"1") -> list[triton.InferInput]:
    return [given("data", "BYTES", np.array([value], np.object_))]


def refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as refused:
        call()
    return refused.value.status().removeprefix("StatusCode."), refused.value.message()


def test_what_the_client_asks_of_the_server(
    site: Site, client: triton.InferenceServerClient
) -> None:
    assert client.is_server_live()
    assert not client.is_server_ready(), "no worker has the label of `waiting`"
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nope")
    assert client.get_server_metadata().name == "headrace"
    metadata = client.get_model_metadata("simple")
    assert (metadata.versions, metadata.inputs[0].shape) == (["1.0"], [-1, 16])
    config = client.get_model_config("simple").config
    assert (config.max_batch_size, config.input[0].dims) == (8, [16])
    states = {one.name: one.state for one in client.get_model_repository_index().models}
    assert (states["simple"], states["waiting"]) == ("READY", "UNAVAILABLE")
    client.infer("simple", simple())
    wait_until(
        lambda: client.get_inference_statistics("simple").model_stats[0].inference_count,
        "the job is counted",
    )
    assert len(client.get_system_shared_memory_status().regions) == 0
    client.unregister_cuda_shared_memory()
    refused = refusal(lambda: client.register_system_shared_memory("a", "/a", 8))
    assert refused[0] == "UNIMPLEMENTED"
    assert "--allow-client-shm" in refused[1]
    assert refusal(client.get_trace_settings)[0] == "UNIMPLEMENTED"


def test_a_model_is_unloaded_and_loaded(client: triton.InferenceServerClient, stub: Any) -> None:
    client.unload_model("identity_int8")
    assert not client.is_model_ready("identity_int8")
    # KServe's clients write the name into field 1.
    stub.RepositoryModelLoad(
        service_pb2.RepositoryModelLoadRequest(repository_name="identity_int8")
    )
    assert client.is_model_ready("identity_int8")
    assert refusal(lambda: client.load_model("nope"))[0] == "NOT_FOUND"


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_loads_at_once_wait_for_their_turn(
    site: Site, client: triton.InferenceServerClient, protocol: str
) -> None:
    together = threading.Barrier(LOADS)

    def load_by_http() -> None:
        url = f"{site.process.url}/v2/repository/models/identity_int8/load"
        with httpx2.Client(timeout=120, verify=PLAIN) as http:
            together.wait(60)
            answer = http.post(url)
        assert answer.status_code == 200, answer.text

    def load_by_grpc() -> None:
        with triton.InferenceServerClient(site.address) as own:
            own.is_server_live()
            together.wait(60)
            own.load_model("identity_int8")

    with ThreadPoolExecutor(LOADS) as threads:
        load = load_by_http if protocol == "HTTP" else load_by_grpc
        for ended in [threads.submit(load) for _ in range(LOADS)]:
            ended.result(120)
    assert client.is_model_ready("identity_int8")
    with ThreadPoolExecutor(LOADS) as threads:
        unloads = [threads.submit(client.unload_model, "identity_int8") for _ in range(LOADS)]
        for ended in unloads:
            ended.result(120)
    assert not client.is_model_ready("identity_int8")
    client.load_model("identity_int8")


def test_infer_is_a_job(site: Site, stub: Any) -> None:
    request = triton._utils._get_inference_request(
        "simple", simple(), "1", "7",
        [triton.InferRequestedOutput("OUTPUT0", class_count=1)], 0, False, False, 5, 10**8, None,
    )  # fmt: skip
    answer, call = stub.ModelInfer.with_call(request)
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "simple", "1.0")
    found = triton.InferResult(answer).as_numpy("OUTPUT0")
    assert found.tolist() == [[b"16:15"], [b"32:15"]]
    metadata: Any = dict(call.initial_metadata())
    assert site.job(metadata["headrace-job"])["status"] == "succeeded"


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.array([[1.5, np.nan]], np.float32)),
        ("FP16", np.arange(6, dtype=np.float16).reshape(3, 2)),
        ("BF16", np.arange(4).reshape(2, 2).astype(ml_dtypes.bfloat16)),
        ("INT8", np.array([[-128, 127]], np.int8)),
        ("UINT64", np.zeros((0, 4), np.uint64)),
        ("BOOL", np.array([[True, False]])),
        ("BYTES", np.array([[b"a", b""], ["ä".encode(), b"\xff\0"]], np.object_)),
        ("FP32", np.arange(40_000, dtype=np.float32).reshape(4, 10_000)),
    ],
)
def test_each_datatype_comes_back(
    client: triton.InferenceServerClient, stub: Any, datatype: str, array: Any
) -> None:
    model = f"identity_{datatype.lower()}"
    found = client.infer(model, [given("INPUT0", datatype, array)], compression_algorithm="gzip")
    again = found.as_numpy("OUTPUT0")
    assert again.shape == array.shape
    np.testing.assert_array_equal(again, array)
    if datatype in ("FP16", "BF16"):
        return
    fields = {
        "FP32": "fp32", "INT8": "int", "UINT64": "uint64", "BOOL": "bool", "BYTES": "bytes"
    }  # fmt: skip
    contents = {f"{fields[datatype]}_contents": array.reshape(-1).tolist()}
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=array.shape, contents=contents)
    assert stub.ModelInfer(request).raw_output_contents == found.get_response().raw_output_contents


def test_a_refusal_has_its_code_and_its_text(client: triton.InferenceServerClient) -> None:
    unknown = refusal(lambda: client.infer("nope", text()))
    assert unknown == ("NOT_FOUND", "Request for unknown model: 'nope' is not found")
    missing = refusal(lambda: client.infer("simple", simple()[:1]))
    assert missing[0] == "INVALID_ARGUMENT"
    assert "missing required input(s) ['INPUT1']" in missing[1]
    assert refusal(lambda: client.infer("echo", text(), sequence_id=3))[0] == "UNIMPLEMENTED"
    late = refusal(lambda: client.infer("waiting", text(), timeout=1000))
    assert late[0] == "UNAVAILABLE"
    assert refusal(lambda: client.infer("echo", text(bytes(2**21))))[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"raw_input_contents": [b"1"]}, "raw_input_contents has 1 values for the 0 inputs"),
        ({"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1]}]},
         "unable to find data for input 'data'"),
        ({"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1],
                      "contents": {"bytes_contents": [b"1"]}}], "raw_input_contents": [b"1"]},
         "contents field must not be specified when using raw_input_contents"),
        ({"inputs": [{"name": "data", "datatype": "BYTES", "shape": [1],
                      "contents": {"int_contents": [1]}}]},
         "unexpected int_contents for input 'data'"),
        ({"inputs": [{"name": "data", "datatype": "FP16", "shape": [1],
                      "contents": {"fp32_contents": [1]}}]}, "FP16 has no contents"),
        ({"inputs": [{"name": "data", "datatype": "BYTES", "shape": [-1],
                      "contents": {"bytes_contents": [b"1"]}}]}, "Unable to parse 'shape'"),
        ({"inputs": [{"name": "data", "datatype": "UINT8", "shape": [1],
                      "contents": {"uint_contents": [256]}}]},
         "input 'data' for model 'echo' has a value that no UINT8 can be"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(stub: Any, message: dict[str, Any], why: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(service_pb2.ModelInferRequest(model_name="echo", **message))
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in error.details()


def test_a_client_that_goes_cancels_its_job(
    site: Site, client: triton.InferenceServerClient
) -> None:
    def ended(job: str) -> bool:
        return bool(site.job(job)["status"] == "cancelled")

    call = client.async_infer("waiting", text(), callback=lambda **_: None)
    (first,) = wait_until(lambda: site.jobs("waiting", "queued"), "the job waits")
    call.cancel()
    wait_until(lambda: ended(first), "the job of the cancelled call is cancelled")
    late = refusal(lambda: client.infer("waiting", text(), client_timeout=0.5))
    assert late[0] == "DEADLINE_EXCEEDED"
    wait_until(lambda: not site.jobs("waiting", "queued"), "its job is cancelled")


def test_a_full_queue_is_unavailable(site: Site, client: triton.InferenceServerClient) -> None:
    call = client.async_infer("full", text(), callback=lambda **_: None)
    wait_until(lambda: site.jobs("full", "queued"), "the queue is full")
    assert refusal(lambda: client.infer("full", text()))[0] == "UNAVAILABLE"
    call.cancel()
    wait_until(lambda: not site.jobs("full", "queued"), "the job is cancelled")


def test_the_messages_in_progress_have_a_limit(site: Site) -> None:
    """It is 16 times `body_limit_bytes`, here 16 MiB."""
    large = [given("data", "BYTES", np.array([bytes(1_000_000)], np.object_))]
    refused = queue.Queue[Any]()
    with triton.InferenceServerClient(site.address) as client:
        calls = [
            client.async_infer("waiting", large, callback=lambda error, **_: refused.put(error))
            for _ in range(20)
        ]
        first = [refused.get(timeout=120) for _ in range(4)]
        assert {one.status() for one in first} == {"StatusCode.RESOURCE_EXHAUSTED"}
        assert "the messages in progress have 16" in first[0].message()
        for call in calls:
            call.cancel()
        wait_until(lambda: not site.jobs("waiting", "queued"), "their jobs are cancelled")
        assert client.infer("identity_bytes", [
            given("INPUT0", "BYTES", np.array([[bytes(1_000_000)]], np.object_))
        ]).as_numpy("OUTPUT0")[0, 0] == bytes(1_000_000)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{SERVICE}/ModelInfer", "RESOURCE_EXHAUSTED"),
        ("grpc.health.v1.Health/Check", "INVALID_ARGUMENT"),
    ],
)
def test_a_flood_of_long_messages_takes_little_memory(site: Site, path: str, code: str) -> None:
    """Most of them wait in their clients: a server that took all would hold 300 MiB."""
    request = service_pb2.ModelInferRequest(model_name="waiting")
    request.inputs.add(name="data", datatype="BYTES", shape=[1])
    request.raw_input_contents.append((1_000_000).to_bytes(4, "little") + bytes(1_000_000))
    message = request.SerializeToString()
    if code == "INVALID_ARGUMENT":
        message = b"\x7a\xc0\x84\x3d" + bytes(1_000_000)  # a field that no message has
    process = Path(f"/proc/{site.process.pid}")
    (process / "clear_refs").write_text("5")  # the peak is that from now on

    def memory(name: str) -> int:
        text = (process / "status").read_text()
        (found,) = (row.split()[1] for row in text.splitlines() if row.startswith(f"{name}:"))
        return int(found) * 1024

    before, found = memory("VmRSS"), queue.Queue[Any]()
    with grpc.insecure_channel(site.address) as channel:
        calls = [channel.unary_unary(f"/{path}").future(message) for _ in range(300)]
        for call in calls:
            call.add_done_callback(found.put)
        ended = [found.get(timeout=120) for _ in range(284)]
        for call in calls:
            call.cancel()
    assert {one.code().name for one in ended} == {code}
    # Three copies of what may be in progress, a window of each call, and what else a call takes.
    assert memory("VmHWM") - before < 3 * 16 * 2**20 + 300 * 2**16 + 2**24
    wait_until(lambda: not site.jobs("waiting", "queued"), "their jobs are cancelled")


def test_open_calls_leave_room_for_others(site: Site, client: triton.InferenceServerClient) -> None:
    """They need no API key: neither silent calls nor long messages hold up a request."""
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    long = b"\x7a\xc0\x84\x3d" + bytes(1_000_000)  # a field that no message has
    with grpc.insecure_channel(site.address) as channel:
        health = "/grpc.health.v1.Health"
        watching = [channel.unary_stream(f"{health}/Watch")(long) for _ in range(16)]
        assert {one.code().name for one in watching} == {"INVALID_ARGUMENT"}
        check = channel.stream_unary(f"{health}/Check")
        silent = [check.future(nothing()) for _ in range(17)]
        try:
            client.infer("echo", text())
            assert not any(one.done() for one in silent)
        finally:
            for one in silent:
                one.cancel()
            never.set()


def answered(begin: Callable[[], Any]) -> Any:
    """A call that has its first answer; others that end without one are begun again."""
    calls: list[Any] = []

    def has_answer() -> bool:
        calls.append(begin())
        try:
            return bool(next(calls[-1]))
        except grpc.RpcError:
            return False

    wait_until(has_answer, "a call has its first answer")
    return calls[-1]


def test_silent_calls_without_a_key_end(site: Site, tmp_path: Path) -> None:
    port, never = free_port(), threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    def first_alone() -> Iterator[bytes]:
        yield b""
        never.wait()

    with (
        api_process(
            site.redis.url,
            site.models,
            inference_protocols_grpc_port=str(port),
            request_timeout_s="1",
            state_dir=str(tmp_path / "state"),
        ),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        health, reflection = "/grpc.health.v1.Health", "/grpc.reflection.v1alpha.ServerReflection"
        try:
            # The silent calls would keep their messages waiting.
            watch = answered(lambda: channel.unary_stream(f"{health}/Watch")(b""))
            first = answered(
                lambda: channel.stream_stream(f"{reflection}/ServerReflectionInfo")(first_alone())
            )
            streams = [channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(nothing()), watch]
            silent = [
                first,
                *(channel.stream_unary(f"{health}/Check").future(nothing()) for _ in range(100)),
                *(
                    channel.stream_unary(f"/{SERVICE}/ServerLive").future(nothing())
                    for _ in range(9)
                ),
                channel.stream_stream(f"{health}/Watch")(nothing()),
                channel.stream_stream(f"{reflection}/ServerReflectionInfo")(nothing()),
            ]
            assert {one.code().name for one in silent} == {"DEADLINE_EXCEEDED"}
            assert {one.details() for one in silent} <= {
                "no message has come within 1 s, its wait for others included. Send it sooner, or "
                "raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
                "the message has not come within 1 s, and other calls wait to send theirs. Send it "
                "faster, or raise request_timeout_s (HEADRACE_REQUEST_TIMEOUT_S).",
            }
            assert not any(one.done() for one in streams)
        finally:
            never.set()


def test_watches_of_the_health_leave_room_for_other_calls(site: Site) -> None:
    health = "/grpc.health.v1.Health"
    with grpc.insecure_channel(site.address) as channel:

        def watch() -> Any:
            return channel.unary_stream(f"{health}/Watch")(b"")

        watches = [watch() for _ in range(WATCHES_MAX + 1)]
        wait_until(lambda: any(one.done() for one in watches), "one is refused")
        assert {one.code().name for one in watches if one.done()} == {"RESOURCE_EXHAUSTED"}
        assert channel.unary_unary(f"{health}/Check")(b"") == b"\x08\x01"
        for one in watches:
            one.cancel()
        assert answered(watch)


def watch_without_a_window() -> bytes:
    """A call of HTTP/2 to `Health.Watch` by a client that lets the server send no message."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        return struct.pack(">I2BI", len(payload), kind, flags, stream)[1:] + payload

    headers = {
        ":method": "POST", ":scheme": "http", ":path": "/grpc.health.v1.Health/Watch",
        ":authority": "x", "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    fields = b"".join(
        b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())
        for name, value in headers.items()
    )
    window = frame(4, 0, 0, struct.pack(">HI", 4, 0))
    message = frame(0, 1, 1, bytes(5))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + window + frame(1, 4, 1, fields) + message


def test_what_takes_too_long_ends(site: Site, tmp_path: Path) -> None:
    """A request of a stream after `max_wait_s`; a message on its way, if others wait for room."""
    port, answers = free_port(), queue.Queue[Any]()
    with (
        api_process(
            site.redis.url,
            site.models,
            inference_protocols_grpc_port=str(port),
            max_wait_s="0.2",
            request_timeout_s="1",
            state_dir=str(tmp_path / "state"),
        ) as process,
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("waiting", text())
        assert "did not end within max_wait_s, 0.2 s" in answers.get(timeout=120).message()
        client.stop_stream()
        never = threading.Event()

        def nothing() -> Iterator[bytes]:
            never.wait()
            yield from ()

        infer = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        silent = [infer.future(nothing()) for _ in range(16)]
        try:
            wait_until(
                lambda: client.get_model_metadata("echo") and all(one.done() for one in silent),
                "other calls make the silent ones end",
            )
        finally:
            never.set()
        assert {one.code().name for one in silent} == {"DEADLINE_EXCEEDED"}
        assert "the message has not come within 1 s" in silent[0].details()
        with socket.create_connection(("127.0.0.1", port), 60) as deaf:
            deaf.sendall(watch_without_a_window())
            while b"application/grpc" not in deaf.recv(4096):
                pass
            process.restart(site.redis.url)  # it ends, although this client takes no news
    assert not site.jobs("waiting", "queued")


def test_silent_calls_of_one_host_do_not_keep_others_out() -> None:
    async def silent() -> bytes:
        await asyncio.Event().wait()
        return b""

    async def sent() -> bytes:
        return b"message"

    async def both() -> bytes:
        room, settings = Room(), Settings(redis_url="redis://localhost")
        tasks = [asyncio.create_task(room.read(silent, "a", settings)) for _ in range(100)]
        await asyncio.sleep(0)
        found = await room.read(sent, "b", settings)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found + await room.read(sent, "a", settings)

    assert asyncio.run(both()) == b"messagemessage"


def test_another_deployment_cannot_share_the_port(site: Site, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "inference_protocols_grpc_port": str(port), "api_processes": "2",
        "state_dir": str(tmp_path / "state"),
    }  # fmt: skip
    # Processes of one deployment have one parent.
    program = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    with (
        api_process(site.redis.url, site.models, **settings),
        api_process(site.redis.url, site.models, **settings),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, sys.executable, "-m", "api"],
            env=environ(
                site.models, redis_url=site.redis.url, port=str(free_port()), **settings
            ),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert f"127.0.0.1:{port} is served by another deployment" in done.stdout + done.stderr


def test_the_name_of_a_port_may_be_long() -> None:
    claim = own_port(f"{'h' * 253}:8001", "grpc_port")
    assert claim is not None
    claim.close()


def test_a_stream_has_many_requests_and_outlives_their_errors(
    client: triton.InferenceServerClient,
) -> None:
    answers = queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for n in range(50):
        client.async_stream_infer("simple", simple(), request_id=str(n))
    client.async_stream_infer("nope", text())
    client.async_stream_infer("simple", simple(), request_id="last")
    found = [answers.get(timeout=120) for _ in range(52)]
    client.stop_stream()
    ids = [result.get_response().id for result, error in found if error is None]
    assert ids == [*map(str, range(50)), "last"]
    assert "unknown model: 'nope'" in found[50][1].message()
    assert found[0][0].get_response().parameters["triton_final_response"].bool_param


def test_a_handler_that_yields_sends_each_piece(client: triton.InferenceServerClient) -> None:
    answers = queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for n in (3, 0, 2):
        client.async_stream_infer(
            "counted",
            [given("COUNT", "INT32", np.array([n], np.int32))],
            request_id=str(n),
            enable_empty_final_response=True,
        )
    pieces: dict[str, list[Any]] = {"3": [], "0": [], "2": []}
    ends = set[str]()
    while len(ends) < 3:
        result, error = answers.get(timeout=120)
        assert error is None
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            ends.add(response.id)
            assert not response.outputs
        else:
            number, name = result.as_numpy("NUMBER"), result.as_numpy("NAME")
            pieces[response.id].append((number.tolist(), name.tolist()))
    client.stop_stream()
    assert pieces["3"] == [([0], [b"0"]), ([1], [b"1"]), ([2], [b"2"])]
    assert pieces["2"] == pieces["3"][:2]
    assert pieces["0"] == [], "only an empty final response"
    whole = client.infer("counted", [given("COUNT", "INT32", np.array([3], np.int32))])
    assert whole.as_numpy("NUMBER").tolist() == [0, 1, 2]
    assert whole.as_numpy("NAME").tolist() == [b"0", b"1", b"2"]
    config = client.get_model_config("counted").config
    assert config.model_transaction_policy.decoupled
    assert not client.get_model_config("simple").config.model_transaction_policy.decoupled


def test_no_text_in_pieces_is_no_output(client: triton.InferenceServerClient) -> None:
    answers = queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    found: dict[bytes, list[Any]] = {}
    for word in (b"ab", b""):
        client.async_stream_infer("spelled", [given("TEXT", "BYTES", np.array([word], np.object_))])
        outputs = found.setdefault(word, [])
        while len(outputs) < max(1, len(word)):
            result, error = answers.get(timeout=120)
            assert error is None
            letter = result.as_numpy("LETTER")
            outputs.append(letter if letter is None else letter.tolist())
    client.stop_stream()
    assert found == {b"ab": [[b"a"], [b"b"]], b"": [None]}


def test_a_client_can_want_errors_as_the_end_of_its_stream(
    site: Site, client: triton.InferenceServerClient
) -> None:
    answers = queue.Queue[Any]()
    client.start_stream(
        lambda result, error: answers.put(error), headers={"triton_grpc_error": "true"}
    )
    client.async_stream_infer("waiting", text())
    wait_until(lambda: site.jobs("waiting", "queued"), "the first job waits")
    client.async_stream_infer("nope", text())
    error = answers.get(timeout=60)
    client.stop_stream(cancel_requests=True)
    assert error.status() == "StatusCode.NOT_FOUND"
    wait_until(lambda: not site.jobs("waiting", "queued"), "the first job is cancelled")


def test_the_asyncio_client(site: Site) -> None:
    async def both() -> tuple[Any, list[str]]:
        async with triton_aio.InferenceServerClient(site.address) as client:
            one = await client.infer("simple", simple())

            async def requests() -> Any:
                for n in range(3):
                    yield {"model_name": "simple", "inputs": simple(), "request_id": str(n)}

            stream = client.stream_infer(requests())
            return one, [result.get_response().id async for result, _ in stream]

    one, ids = asyncio.run(both())
    assert (one.as_numpy("OUTPUT1") == COUNT - 1).all()
    assert ids == ["0", "1", "2"]


def test_health_and_reflection(site: Site) -> None:
    with grpc.insecure_channel(site.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
        found = DescriptorPool(database).FindServiceByName(SERVICE)
    known = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert [one.name for one in found.methods] == [one.name for one in known.methods]
    fields = found.methods_by_name["ModelInfer"].input_type.fields_by_name
    expected = known.methods_by_name["ModelInfer"].input_type.fields_by_name
    assert {n: f.number for n, f in fields.items()} == {n: f.number for n, f in expected.items()}


def test_messages_that_are_none_are_refused(site: Site) -> None:
    """Bytes at random, and a request that was cut or changed at random."""
    chance = random.Random(33)
    whole = triton._utils._get_inference_request(
        "simple", simple(), "", "7", None, 0, False, False, 1, None, {"a": 1.5}
    ).SerializeToString()
    codes = set()
    with grpc.insecure_channel(site.address) as channel:
        calls = [
            channel.unary_unary(f"/{SERVICE}/{one.name}")
            for one in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
            if not one.client_streaming
        ]
        infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        for n in range(120):
            body = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            noise = chance.randbytes(chance.randrange(64))
            sent = (bytes(body), whole[: chance.randrange(len(whole))], noise)[n % 3]
            for call in (infer, calls[n % len(calls)]):
                try:
                    call(sent, timeout=60)
                except grpc.RpcError as error:
                    refused: Any = error
                    codes.add(refused.code().name)
            try:
                list(stream(iter([sent]), timeout=60))
            except grpc.RpcError as error:
                refused = error
                codes.add(refused.code().name)
        assert codes <= {"INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}
        assert "INVALID_ARGUMENT" in codes
    with triton.InferenceServerClient(site.address) as client:
        assert (client.infer("simple", simple()).as_numpy("OUTPUT0") == COUNT + 1).all()


def serial(port: int) -> int:
    """The number of the certificate of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain) as secure,
    ):
        found = secure.getpeercert(binary_form=True)
    assert found is not None
    return load_der_x509_certificate(found).serial_number


def test_keys_and_tls(site: Site, tmp_path: Path) -> None:
    port, authority = free_port(), Authority(tmp_path)
    signed = authority.sign()
    _, user = make_key(site.redis, Scope.SUBMIT, Scope.READ)
    _, reader = make_key(site.redis, Scope.READ)
    process = ApiProcess(
        site.redis.url,
        site.models,
        auth="on",
        inference_protocols_grpc_port=str(port),
        state_dir=str(tmp_path / "state"),
        tls_cert_file=str(signed.cert_file),
        tls_key_file=str(signed.key_file),
    )
    try:
        process.start(str(authority.ca_file))
        with triton.InferenceServerClient(
            f"localhost:{port}", ssl=True, root_certificates=str(authority.ca_file)
        ) as client:
            assert client.is_server_live()
            assert refusal(lambda: client.infer("echo", text()))[0] == "UNAUTHENTICATED"
            bad = {"authorization": "Bearer hr_x"}
            assert refusal(lambda: client.infer("echo", text(), headers=bad))[0] == (
                "UNAUTHENTICATED"
            )
            mine = {"authorization": f"Bearer {user}"}
            assert client.infer("echo", text(), headers=mine).as_numpy("result").tolist() == [b"1"]
            assert refusal(lambda: client.load_model("echo", headers=mine))[0] == (
                "PERMISSION_DENIED"
            )
            renewed = authority.sign()
            wait_until(lambda: serial(port) == renewed.serial, "the new certificate is in use")
            theirs = {"authorization": f"Bearer {reader}"}
            assert client.is_model_ready("echo", headers=theirs)
            assert refusal(lambda: client.infer("echo", text(), headers=theirs))[0] == (
                "PERMISSION_DENIED"
            )
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        (True, "inference_protocols: grpc_port is set, but grpcio is not installed"),
        (False, "cannot be used"),
    ],
)
def test_a_port_that_cannot_be_served(site: Site, hidden: bool, why: str) -> None:
    program = "import runpy, sys, importlib.util as u; found = u.find_spec\n"
    if hidden:
        program += "u.find_spec = lambda name, *a: None if name == 'grpc' else found(name, *a)\n"
    program += "runpy.run_module('api', run_name='__main__')"
    port = site.address.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ(
            site.models,
            redis_url=site.redis.url,
            port=str(free_port()),
            inference_protocols_grpc_port=port,
        ),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    assert why in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
