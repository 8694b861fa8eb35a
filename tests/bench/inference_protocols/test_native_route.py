"""The benchmarks of v2 still run; what they measure is asserted nowhere."""

from __future__ import annotations

from benchmarks.common.systems import Headrace
from benchmarks.inference_protocols import beside_triton
from benchmarks.inference_protocols.native_route import ENVIRON, MODEL, measure
from headrace.server.ports import free_port


def test_a_pair_of_each_size_and_each_way_over_grpc_are_measured() -> None:
    port = free_port()
    environ = {**ENVIRON, "HEADRACE_INFERENCE_PROTOCOLS_GRPC_PORT": str(port)}
    models = {"identity": MODEL, "simple": beside_triton.MODEL}
    with Headrace(events=False, models=models, environ=environ) as running:
        for values in (16, 5000):
            ((native, ours),) = measure(running, values, 0.2, 1)
            assert min(native.load.rate, ours.load.rate) > 0
        address = f"127.0.0.1:{port}"
        for rates in beside_triton.measure([address], 0.2, 1).values():
            assert min(rates) > 0
