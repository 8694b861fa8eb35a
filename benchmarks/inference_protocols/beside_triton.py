"""A gRPC load on Headrace, and the same on a real Triton, in turn.

    python -m benchmarks.inference_protocols.beside_triton --triton localhost:8001

Triton serves the example `simple` with its python backend. Without `--triton` only Headrace is
measured. A published client sends calls, and then requests on one stream.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import numpy as np
import tritonclient.grpc.aio as triton

from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table
from headrace.server.ports import free_port
from tests.extensions.inference_protocols.integration.conftest import HANDLERS, tensors

AT_ONCE: Final = 64
MODEL: Final[dict[str, Any]] = {
    "handler": f"{HANDLERS}:AddSub",
    "max_queue_depth": 10_000_000,
    "max_batch_size": 8,
    "inputs": tensors("INT32", [-1, 16], "INPUT0", "INPUT1"),
    "outputs": tensors("INT32", [-1, 16], "OUTPUT0", "OUTPUT1"),
}


def inputs() -> list[Any]:
    found = [triton.InferInput(f"INPUT{n}", [1, 16], "INT32") for n in range(2)]
    for one in found:
        one.set_data_from_numpy(np.ones((1, 16), np.int32))
    return found


async def call_rate(address: str, seconds: float) -> float:
    """Return calls a second of so many clients, each with one call at a time."""
    sent, ends = inputs(), time.monotonic() + seconds

    async def call_in_turn(client: Any) -> int:
        count = 0
        while time.monotonic() < ends:
            await client.infer("simple", sent)
            count += 1
        return count

    async with triton.InferenceServerClient(address) as client:
        return sum(await asyncio.gather(*(call_in_turn(client) for _ in range(AT_ONCE)))) / seconds


async def stream_rate(address: str, seconds: float) -> float:
    """Return responses a second of one stream that has so many requests in progress."""
    sent, ends, count = inputs(), time.monotonic() + seconds, 0
    in_progress = asyncio.Semaphore(AT_ONCE)

    async def requests() -> AsyncIterator[dict[str, Any]]:
        while time.monotonic() < ends:
            await in_progress.acquire()
            yield {"model_name": "simple", "inputs": sent}

    async with triton.InferenceServerClient(address) as client:
        async for _, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            count += 1
            in_progress.release()
    return count / seconds


def measure(addresses: list[str], seconds: float, rounds: int) -> dict[str, list[float]]:
    """Return the rates of each way and server, by `unary` or `stream` and the address."""
    rates: dict[str, list[float]] = {}
    for number in range(-1, rounds):
        for name, rate_of in (("unary", call_rate), ("stream", stream_rate)):
            for address in addresses[:: 1 if number % 2 else -1]:
                rate = asyncio.run(rate_of(address, seconds))
                if number >= 0:  # the first round warms up
                    rates.setdefault(f"{name} {address}", []).append(rate)
    return rates


def main() -> None:
    """Measure both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--triton", metavar="HOST:PORT", help="gRPC of Triton")
    parser.add_argument("--seconds", type=float, default=3, help="length of each load")
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    arguments = parser.parse_args()
    port = free_port()
    environ = {"HEADRACE_INFERENCE_PROTOCOLS_GRPC_PORT": str(port), "HEADRACE_RESULT_TTL_S": "5"}
    addresses = [f"127.0.0.1:{port}"]
    table = Table(f"gRPC, {AT_ONCE} at once", "Headrace, 1/s", "Triton, 1/s", "ratio")
    if arguments.triton:
        addresses.append(arguments.triton)
    with Headrace(events=False, models={"simple": MODEL}, environ=environ):
        rates = measure(addresses, arguments.seconds, arguments.rounds)
    for name in ("unary", "stream"):
        of_servers = [rates[f"{name} {address}"] for address in addresses]
        cells = [f"{statistics.median(one):.0f}" for one in of_servers]
        if arguments.triton:
            ratios = [ours / theirs for ours, theirs in zip(*of_servers, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        table.add(name, *cells, *[""] * (3 - len(cells)))


if __name__ == "__main__":
    main()
