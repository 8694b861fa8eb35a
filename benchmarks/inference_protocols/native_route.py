"""Raw tensors by v2, and the same bytes on the native route.

    python -m benchmarks.inference_protocols.native_route

The model returns its tensor. On the native route the same model gets the same bytes, as an
envelope. Both are measured in turn, and the ratio is that of the rates of a pair. The CPU is that
of all processes for 1,000 requests, because other load on the machine changes it less. Beyond
`inline_limit_bytes`, an answer of the native route does not have the result, and one of v2 has.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any, Final, NamedTuple

from benchmarks.common.http_load import WAIT, generator, run_load
from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table
from extensions.inference_protocols.tensors.envelope import type_of
from tests.extensions.inference_protocols.integration.conftest import HANDLERS

CONNECTIONS: Final = 64
#: Values of FP32 in a tensor: 64 bytes, in a message; 150 KB, in the payload store.
SIZES: Final = (16, 1000, 37_500)
MODEL: Final[dict[str, Any]] = {
    "handler": f"{HANDLERS}:Identity",
    "max_queue_depth": 10_000_000,
    "max_batch_size": 32,
    "inputs": {"tensors": [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]},
}
#: The results of the native route are kept as well, and would fill the payload store.
ENVIRON: Final = {
    "HEADRACE_RESULT_TTL_S": "5",
    "HEADRACE_MAX_PAYLOAD_MEMORY_BYTES": str(32 * 1024**3),
}


class Route(NamedTuple):
    """The rate of one load, and the CPU seconds of all processes per 1,000 requests."""

    rate: float
    cpu_s: float


def measure(running: Headrace, values: int, seconds: float, rounds: int) -> list[list[Route]]:
    """Return pairs of loads: of the native route, then of v2.

    Raises:
        RuntimeError: requests failed.
    """
    data = bytes(4 * values)
    row = {
        "name": "INPUT0", "datatype": "FP32", "shape": [1, values],
        "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    text = json.dumps({"inputs": [row], "parameters": {"binary_data_output": True}}).encode()
    length = ("Inference-Header-Content-Length", str(len(text)))
    ways: list[tuple[str, str, str, tuple[str, str]]] = [
        ("/api/v1/models/identity/jobs", WAIT, type_of(len(text), 1), ("", "")),
        ("/v2/models/identity/infer", "", "application/octet-stream", length),
    ]
    pairs = []
    for number in range(-1, rounds):
        pair = [Route(0, 0)] * len(ways)
        for at in (0, 1) if number % 2 else (1, 0):
            path, prefer, kind, header = ways[at]
            cpu = running.cpu()
            cpu.start()
            load = run_load(
                running.url + path, text + data, CONNECTIONS, seconds, prefer, kind, header
            )
            if load.bad or not load.requests:
                raise RuntimeError(f"{load.bad} of {load.requests} requests to {path} failed")
            pair[at] = Route(load.rate, sum(cpu.per_1000(load.requests).values()))
        if number >= 0:  # the first pair warms up
            pairs.append(pair)
    return pairs


def main() -> None:
    """Measure tensors of each size, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of each load")
    parser.add_argument("--rounds", type=int, default=9, help="pairs")
    arguments = parser.parse_args()
    print(f"{CONNECTIONS} connections, {generator()}, {arguments.rounds} pairs")
    table = Table("bytes", "native, 1/s", "v2, 1/s", "ratio", "native CPU s", "v2 CPU s per 1,000")
    with Headrace(events=False, models={"identity": MODEL}, environ=ENVIRON) as running:
        for values in SIZES:
            pairs = measure(running, values, arguments.seconds, arguments.rounds)
            native, ours = zip(*pairs, strict=True)
            table.add(
                str(4 * values),
                f"{statistics.median(one.rate for one in native):.0f}",
                f"{statistics.median(one.rate for one in ours):.0f}",
                f"{statistics.median(two.rate / one.rate for one, two in pairs):.3f}",
                f"{statistics.median(one.cpu_s for one in native):.3f}",
                f"{statistics.median(one.cpu_s for one in ours):.3f}",
            )


if __name__ == "__main__":
    main()
