"""Raw tensors by v2, and the same bytes on the native route.

    python -m benchmarks.inference_protocols.native_route

The model returns its tensor. On the native route the same model gets the same bytes, as an
envelope. Both are measured in turn, and the ratio is that of the rates of a pair. The CPU is that
of all processes for 1,000 requests, because other load on the machine changes it less. Beyond
`inline_limit_bytes`, an answer of the native route does not have the result, and one of v2 has.
"""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.common.http_load import WAIT
from benchmarks.common.pairs import Pair, Way, arguments_of, measure_pairs, medians
from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table
from extensions.inference_protocols.tensors.envelope import type_of
from tests.extensions.inference_protocols.integration.conftest import HANDLERS

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


def measure(running: Headrace, values: int, seconds: float, rounds: int) -> list[Pair]:
    """Return the loads of a tensor with so many values, in pairs."""
    data = bytes(4 * values)
    row = {
        "name": "INPUT0", "datatype": "FP32", "shape": [1, values],
        "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    text = json.dumps({"inputs": [row], "parameters": {"binary_data_output": True}}).encode()
    native = Way("/api/v1/models/identity/jobs", text + data, WAIT, type_of(len(text), 1))
    header = ("Inference-Header-Content-Length", str(len(text)))
    ours = Way("/v2/models/identity/infer", text + data, "", "application/octet-stream", header)
    return measure_pairs(running, native, ours, seconds, rounds)


def main() -> None:
    """Measure tensors of each size, and print the table."""
    arguments = arguments_of(__doc__)
    table = Table("bytes", "native, 1/s", "v2, 1/s", "ratio", "native CPU s", "v2 CPU s per 1,000")
    with Headrace(events=False, models={"identity": MODEL}, environ=ENVIRON) as running:
        for values in SIZES:
            pairs = measure(running, values, arguments.seconds, arguments.rounds)
            table.add(str(4 * values), *medians(pairs))


if __name__ == "__main__":
    main()
