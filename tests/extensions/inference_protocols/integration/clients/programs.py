"""Runs the calls of one client: `programs.py NAME URL ADDRESS`, with the Python of `make clients`.

It has no import of ours, and prints each call that did what it should.
"""

# mypy: ignore-errors
from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROWS = np.arange(32, dtype=np.int32).reshape(2, 16)


def refusal(call: Callable[[], Any], kind: Any) -> Any:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("it was not refused")


def min_tfs(_: str, address: str) -> list[Callable[[], Any]]:
    # Its generated modules are of an old protoc.
    sys.path.insert(0, str(Path(sys.prefix) / "protobuf-3"))
    import grpc
    from min_tfs_client.requests import TensorServingClient
    from min_tfs_client.tensors import tensor_proto_to_ndarray as array_of
    from tensorflow.core.framework.tensor_pb2 import TensorProto
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
        regression_pb2,
    )

    host, _, port = address.partition(":")
    client = TensorServingClient(host, int(port))
    channel = grpc.insecure_channel(address)
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def code(call: Callable[[], Any]) -> tuple[str, str]:
        error = refusal(call, grpc.RpcError)
        return error.code().name, error.details()

    def predict() -> None:
        x = np.array([1, 2, 5], np.float32)
        answer = client.predict_request("half", {"x": x}, model_version=1)
        assert array_of(answer.outputs["y"]).tolist() == [2.5, 3, 4.5]
        spec = answer.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == (
            "half", 1, "serving_default",
        )  # fmt: skip

    def types() -> None:
        for kind in ("float32", "int8", "uint64", "bool"):
            name = {"float32": "fp32"}.get(kind, kind)
            given = np.array([[0, 1], [1, 1]], kind)
            answer = client.predict_request(f"identity_{name}", {"INPUT0": given})
            back = array_of(answer.outputs["OUTPUT0"])
            assert back.dtype == given.dtype
            assert (back == given).all()
        words = np.array([["ä", "b"]])
        answer = client.predict_request("identity_bytes", {"INPUT0": words})
        assert list(answer.outputs["OUTPUT0"].string_val) == ["ä".encode(), b"b"]

    def several() -> None:
        answer = client.predict_request("simple", {"INPUT0": ROWS, "INPUT1": ROWS})
        assert (array_of(answer.outputs["OUTPUT0"]) == ROWS * 2).all()
        request = predict_pb2.PredictRequest(output_filter=["OUTPUT1"])
        request.model_spec.name = "simple"
        for name in ("INPUT0", "INPUT1"):
            one = request.inputs[name]
            one.dtype, one.tensor_content = 3, ROWS.tobytes()
            for size in ROWS.shape:
                one.tensor_shape.dim.add(size=size)
        assert list(stub.Predict(request).outputs) == ["OUTPUT1"]

    def filled() -> None:
        """One value fills a shape, as TensorFlow writes a constant."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "half"
        one = request.inputs["x"]
        one.dtype, one.float_val[:] = 1, [4.0]
        one.tensor_shape.dim.add(size=3)
        assert array_of(stub.Predict(request).outputs["y"]).tolist() == [4, 4, 4]
        one.tensor_shape.dim[0].size = 2**40
        assert code(lambda: stub.Predict(request))[0] == "RESOURCE_EXHAUSTED"

    def native() -> None:
        answer = client.predict_request("echo", {"data": np.array(["1", "a"])})
        assert list(answer.outputs["result"].string_val) == [b"1", b'"a"']

    def refused() -> None:
        x = {"x": np.array([1], np.float32)}
        unknown = code(lambda: client.predict_request("nope", x))
        assert unknown == ("NOT_FOUND", "Servable not found for request: Latest(nope)")
        version = code(lambda: client.predict_request("half", x, model_version=7))
        assert version == ("NOT_FOUND", "Servable not found for request: Specific(half, 7)")
        wrong = code(lambda: client.predict_request("half", {"y": x["x"]}))
        assert wrong[0] == "INVALID_ARGUMENT"
        late = code(lambda: client.predict_request("waiting", {"data": np.array(["1"])}, 1))
        assert late[0] == "DEADLINE_EXCEEDED"

    def examples() -> None:
        regress = regression_pb2.RegressionRequest()
        classify = classification_pb2.ClassificationRequest()
        for request, model, name in ((regress, "half", "x"), (classify, "scores", "p")):
            request.model_spec.name = model
            for value in (0.0, 1.0):
                example = request.input.example_list.examples.add()
                example.features.feature[name].float_list.value.append(value)
        found = stub.Regress(regress).result.regressions
        assert [one.value for one in found] == [2, 2.5]
        rows = stub.Classify(classify).result.classifications
        found_classes = [[(one.label, one.score) for one in row.classes] for row in rows]
        assert found_classes == [[("cat", 1), ("dog", 0)], [("cat", 0), ("dog", 1)]]

    def metadata() -> None:
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "half"
        signatures = get_model_metadata_pb2.SignatureDefMap()
        stub.GetModelMetadata(request).metadata["signature_def"].Unpack(signatures)
        tensor = signatures.signature_def["serving_default"].inputs["x"]
        assert (tensor.dtype, tensor.tensor_shape.dim[0].size) == (1, -1)

    def status() -> None:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "half"
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        (row,) = models.GetModelStatus(request).model_version_status
        assert (row.version, row.state, row.status.error_code) == (1, 30, 0)
        request.model_spec.version.value = 1
        assert list(models.GetModelStatus(request).model_version_status) == [row]

    def no_message() -> None:
        raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        assert code(lambda: raw(b"\xff\xff"))[0] == "INVALID_ARGUMENT"
        content = TensorProto(dtype=7, tensor_content=b"1").SerializeToString()
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "echo"
        request.inputs["data"].ParseFromString(content)
        assert "string_val" in code(lambda: stub.Predict(request))[1]
        request.inputs["data"].dtype = 18
        assert "DT_COMPLEX128" in code(lambda: stub.Predict(request))[1]

    return [
        predict, types, several, filled, native, refused, examples, metadata, status, no_message,
    ]  # fmt: skip


def kserve_inputs(binary: bool) -> Any:
    from kserve import InferInput, InferRequest

    inputs = [InferInput(f"INPUT{n}", [2, 16], "INT32") for n in range(2)]
    for one in inputs:
        one.set_data_from_numpy(ROWS, binary_data=binary)
    return InferRequest("simple", inputs, request_id="7")


def kserve_rest(url: str, _: str) -> list[Callable[[], Any]]:
    import httpx
    from kserve import InferenceRESTClient, RESTConfig

    def client(protocol: str) -> Any:
        return InferenceRESTClient(RESTConfig(protocol=protocol, retries=0, timeout=60))

    def v2() -> None:
        async def calls() -> None:
            ours = client("v2")
            assert await ours.is_server_live(url)
            assert await ours.is_model_ready(url, "simple")
            assert not await ours.is_model_ready(url, "nope")
            for binary in (False, True):
                answer = await ours.infer(url, kserve_inputs(binary), model_name="simple")
                assert (answer.id, answer.model_name) == ("7", "simple")
                assert (answer.outputs[0].as_numpy() == ROWS * 2).all()

        asyncio.run(calls())

    def v1() -> None:
        async def calls() -> None:
            ours = client("v1")
            assert await ours.is_model_ready(url, "half")
            answer = await ours.infer(url, {"instances": [1.0, 5.0]}, model_name="half")
            assert answer == {"predictions": [2.5, 4.5]}

        asyncio.run(calls())

    def refused() -> None:
        def call() -> None:
            asyncio.run(client("v2").infer(url, kserve_inputs(True), model_name="nope"))

        error = refusal(call, httpx.HTTPStatusError)
        assert "Request for unknown model" in str(error)

    return [v2, v1, refused]


def kserve_grpc(_: str, address: str) -> list[Callable[[], Any]]:
    import grpc
    from kserve import InferenceGRPCClient, InferRequest

    def run(calls: Callable[[Any], Any]) -> Any:
        async def inside() -> Any:
            async with InferenceGRPCClient(address, retries=0) as client:
                return await calls(client)

        return asyncio.run(inside())

    def ready() -> None:
        assert run(lambda client: client.is_server_live())
        assert run(lambda client: client.is_model_ready("simple"))
        assert not run(lambda client: client.is_model_ready("nope"))

    def infer() -> None:
        for binary in (False, True):
            request = kserve_inputs(binary)
            answer = run(partial(InferenceGRPCClient.infer, infer_request=request))
            assert (answer.id, answer.model_name) == ("7", "simple")
            assert (answer.outputs[0].as_numpy() == ROWS * 2).all()

    def refused() -> None:
        request = InferRequest("simple", kserve_inputs(True).inputs[:1])
        error = refusal(lambda: run(lambda client: client.infer(request)), grpc.RpcError)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    return [ready, infer, refused]


CLIENTS = {"min-tfs-client": min_tfs, "kserve-rest": kserve_rest, "kserve-grpc": kserve_grpc}

if __name__ == "__main__":
    for one in CLIENTS[sys.argv[1]](*sys.argv[2:]):
        one()
        print(one.__name__)
    print("done")
