"""TorchServe's gRPC: a client that is compiled from its .proto files, as TorchServe's users do."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import google.rpc
import grpc
import grpc_tools
import pytest
from google.protobuf.empty_pb2 import Empty
from grpc_tools import protoc

from extensions.torchserve.config.key_file import make_keys
from headrace.server.ports import free_port
from tests.extensions.torchserve.harness.site import TorchServeSite, torchserve_site
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until

SERVICE: Final = "org.pytorch.serve.grpc.inference.InferenceAPIsService"
MANAGEMENT: Final = "org.pytorch.serve.grpc.management.ManagementAPIsService"
PROTOS: Final = Path(__file__).parents[4] / "extensions" / "torchserve" / "grpc" / "protos"
#: Answers with what it got, in pieces if a request wants some; keeps the values of sequences.
HANDLER: Final = """
import json, os, time
from ts.handler_utils.utils import send_intermediate_predict_response as send

def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    answers = []
    for idx, row in enumerate(data):
        while row.get("until") and not os.path.exists(bytes(row["until"]).decode()):
            time.sleep(0.005)
        if row.get("fail"):
            raise ValueError("this request is bad")
        if row.get("pieces"):
            for n in range(int(row["pieces"])):
                send([f"piece {n} "], context.request_ids, "Intermediate", 200, context)
            answers.append("the end")
            continue
        sequence = context.get_request_header(idx, context.header_key_sequence_id)
        values = context.cache.setdefault(sequence or "", [])
        values.append(bytes(row["data"]).decode())
        answers.append({"sequence": sequence, "values": values, "kind": type(row["data"]).__name__})
    return answers
"""


@dataclass(frozen=True)
class Grpc:
    """TorchServe's two services of a site, with the modules of their messages."""

    site: TorchServeSite
    inference: Any
    management: Any
    i: Any
    m: Any
    first: grpc.Channel

    def predict(self, **fields: Any) -> Any:
        return self.inference.Predictions(self.i.PredictionsRequest(**fields))


def compiled(folder: Path) -> None:
    """Compile the .proto files of TorchServe into a folder."""
    googles = str(Path(next(iter(google.rpc.__path__))).parents[1])
    own = str(Path(grpc_tools.__file__).parent / "_proto")
    paths = [f"-I{path}" for path in (PROTOS, googles, own)]
    files = [str(PROTOS / name) for name in ("inference.proto", "management.proto")]
    made = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", *paths, *made, *files]) == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grpc]:
    folder = tmp_path_factory.mktemp("grpc")
    (folder / "client").mkdir()
    compiled(folder / "client")
    sys.path.insert(0, str(folder / "client"))
    try:
        names = ("inference_pb2", "management_pb2", "inference_pb2_grpc", "management_pb2_grpc")
        i, m, inference, management = map(import_module, names)
    finally:
        sys.path.remove(str(folder / "client"))
    ports = free_port(), free_port()
    with (
        redis_server() as redis,
        torchserve_site(
            redis.url, folder, grpc_inference_port=ports[0], grpc_management_port=ports[1]
        ) as site,
        grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as first,
        grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as second,
    ):
        manifest = {
            "runtime": "python",
            "model": {"modelName": "told", "handler": "told.py", "modelVersion": "1.0"},
        }
        members = {"MAR-INF/MANIFEST.json": json.dumps(manifest), "told.py": HANDLER}
        found = Grpc(
            site,
            inference.InferenceAPIsServiceStub(first),
            management.ManagementAPIsServiceStub(second),
            i, m, first,
        )  # fmt: skip
        found.management.RegisterModel(
            m.RegisterModelRequest(
                url=site.members("told.mar", members), initial_workers=1, synchronous=True
            )
        )
        yield found


def silence(over: threading.Event) -> Iterator[bytes]:
    """Send no message."""
    over.wait()
    yield from ()


def refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error: Any = refused.value
    return error.code().name, error.details()


def test_predictions(served: Grpc) -> None:
    assert json.loads(served.inference.Ping(Empty()).health) == {"status": "Healthy"}
    answer = served.predict(model_name="told", model_version="1.0", input={"data": b"a\xc3\xa4"})
    found = json.loads(answer.prediction)
    assert (found["values"][-1], found["kind"]) == ("aä", "bytearray")
    whole = served.predict(model_name="told", input={"pieces": b"2"})
    assert whole.prediction == b"piece 0 piece 1 the end"
    own, call = served.inference.Predictions.with_call(
        served.i.PredictionsRequest(model_name="echo", input={"data": b'{"a": 1}'})
    )
    assert json.loads(own.prediction) == {"a": 1}
    trailers: Any = dict(call.trailing_metadata())
    assert served.site.api.job(trailers["headrace-job"])["status"] == "succeeded"


def test_a_prediction_in_pieces(served: Grpc) -> None:
    request = served.i.PredictionsRequest(model_name="told", input={"pieces": b"3"})
    found = [one.prediction for one in served.inference.StreamPredictions(request)]
    assert found == [b"piece 0 ", b"piece 1 ", b"piece 2 ", b"the end"]


def test_a_stream_of_sequences(served: Grpc) -> None:
    def requests() -> Iterator[Any]:
        for value in (b"a", b"b"):
            yield served.i.PredictionsRequest(
                model_name="told", sequence_id="mine", input={"data": value}
            )
        yield served.i.PredictionsRequest(model_name="nope", sequence_id="other")

    answers = list(served.inference.StreamPredictions2(requests()))
    found = [json.loads(one.prediction) for one in answers if one.prediction]
    assert {one["sequence"] for one in found} == {"mine"}
    assert max(sorted(one["values"]) for one in found if len(one["values"]) == 2) == ["a", "b"]
    (failed,) = (one for one in answers if one.status.code)
    assert (failed.sequence_id, failed.status.code) == ("other", 13)
    assert failed.status.message.endswith("ModelNotFoundException")


def test_refusals_have_the_codes_of_torchserve(served: Grpc) -> None:
    code, text = refusal(lambda: served.predict(model_name="nope", input={"data": b"1"}))
    assert code == "INTERNAL"
    assert text.endswith("\nModelNotFoundException")
    assert refusal(lambda: served.predict(input={"data": b"1"})) == (
        "INVALID_ARGUMENT", "Parameter model_name is required.\nBadRequestException"
    )  # fmt: skip
    code, text = refusal(lambda: served.predict(model_name="told", input={"fail": b"1"}))
    assert code == "UNAVAILABLE"
    assert "InternalServerException" in text
    unknown = served.m.DescribeModelRequest(model_name="nope")
    assert refusal(lambda: served.management.DescribeModel(unknown))[0] == "NOT_FOUND"


def test_a_client_that_goes_cancels_what_waits(served: Grpc, tmp_path: Path) -> None:
    def jobs(status: str) -> list[str]:
        query = {"model": "told", "status": status}
        found = served.site.http.get("/api/v1/jobs", params=query).json()["jobs"]
        return [job["id"] for job in found]

    gate = tmp_path / "gate"
    request = served.i.PredictionsRequest(
        model_name="told", input={"until": str(gate).encode(), "data": b"1"}
    )
    first = served.inference.Predictions.future(request)
    wait_until(lambda: jobs("running"), "the first one runs")
    second = served.inference.Predictions.future(request)
    (waiting,) = wait_until(lambda: jobs("queued"), "the second one waits")
    second.cancel()
    wait_until(lambda: served.site.api.job(waiting)["status"] == "cancelled", "it is cancelled")
    gate.touch()
    assert json.loads(first.result().prediction)["values"][-1] == "1"


def test_a_call_needs_the_token_of_its_interface(tmp_path: Path, served: Grpc) -> None:
    file, port = tmp_path / "key_file.json", free_port()
    make_keys(file, 60)
    token = json.loads(file.read_text())["management"]["key"]
    with (
        torchserve_site(
            served.site.api.redis_url, tmp_path, worker=False, disable_token_authorization=False,
            key_file=file, grpc_management_port=port,
        ),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):  # fmt: skip
        call = channel.unary_unary(f"/{MANAGEMENT}/ListModels")
        assert refusal(lambda: call(b""))[0] == "PERMISSION_DENIED"
        silent, over = channel.stream_unary(f"/{MANAGEMENT}/ListModels"), threading.Event()
        code, text = refusal(silent.future(silence(over), timeout=120).result)
        over.set()
        assert (code, text.splitlines()[-1]) == ("PERMISSION_DENIED", "InvalidKeyException")
        assert b"told" in call(b"", metadata=[("authorization", f"Bearer {token}")])


def test_silent_calls_do_not_make_a_health_probe_fail(served: Grpc) -> None:
    ping, over = served.first.stream_unary(f"/{SERVICE}/Ping"), threading.Event()
    silent = [ping.future(silence(over)) for _ in range(17)]
    try:
        check = served.first.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=120) == b"\x08\x01"  # SERVING
        assert not any(call.done() for call in silent)
    finally:
        for call in silent:
            call.cancel()
        over.set()


def test_messages_that_are_none_are_refused(served: Grpc, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(33)
    whole = served.i.PredictionsRequest(
        model_name="told", sequence_id="s\n\0", input={"data": b"1", 'a"\r\n;': b"\0\xff"}
    ).SerializeToString()
    codes = set()
    for n in range(200):
        body = bytearray(whole)
        body[chance.randrange(len(body))] = chance.randrange(256)
        noise = chance.randbytes(chance.randrange(64))
        sent = (bytes(body), whole[: chance.randrange(len(whole))], noise)[n % 3]
        for call in (
            lambda sent: [served.first.unary_unary(f"/{SERVICE}/Predictions")(sent)],
            served.first.unary_stream(f"/{SERVICE}/StreamPredictions"),
            lambda sent: served.first.stream_stream(f"/{SERVICE}/StreamPredictions2")(iter([sent])),
        ):
            try:
                list(call(sent))
            except grpc.RpcError as error:
                refused: Any = error
                codes.add(refused.code().name)
    # INTERNAL is TorchServe's code for a model that it does not have.
    assert codes <= {"INVALID_ARGUMENT", "INTERNAL", "UNAVAILABLE"}
    assert "internal error" not in caplog.text
    assert json.loads(served.inference.Ping(Empty()).health) == {"status": "Healthy"}


def test_management(served: Grpc) -> None:
    site, management, m = served.site, served.management, served.m
    url = site.archive("answers")
    register = m.RegisterModelRequest(url=url, model_name="own", initial_workers=1)
    register.synchronous = True
    assert management.RegisterModel(register).msg == (
        'Model "own" Version: 1.0 registered with 1 initial workers'
    )
    assert refusal(lambda: management.RegisterModel(register))[0] == "ABORTED"
    listed = json.loads(management.ListModels(m.ListModelsRequest(limit=1)).msg)
    assert (len(listed["models"]), listed["nextPageToken"]) == (1, "1")
    scale = m.ScaleWorkerRequest(model_name="own", min_worker=2, max_worker=2, synchronous=True)
    assert management.ScaleWorker(scale).msg == "Workers scaled to 2 for model: own"
    described = json.loads(
        management.DescribeModel(m.DescribeModelRequest(model_name="own", model_version="1.0")).msg
    )
    assert described[0]["minWorkers"] == 2
    chosen = management.SetDefault(m.SetDefaultRequest(model_name="own", model_version="1.0"))
    assert "successfully updated" in chosen.msg
    removed = management.UnregisterModel(m.UnregisterModelRequest(model_name="own"))
    assert removed.msg == 'Model "own" unregistered'
