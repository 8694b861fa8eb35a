"""Streams of pieces from LitServe.

    python benchmarks/generation/litserve_streams.py PORT

It imports nothing of Headrace, so that it runs where only LitServe is installed.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

# It is not installed where the types are checked.
litserve: Any = importlib.import_module("litserve")


class Pieces(litserve.LitAPI):  # type: ignore[misc]
    """Yields pieces for batches as large as those of Headrace."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    # LitServe takes an annotation for a parameter of the query.
    def decode_request(self, request) -> int:  # type: ignore[no-untyped-def]
        """Return how many pieces the request has."""
        return int(request["pieces"])

    def batch(self, inputs: list[int]) -> list[int]:
        """Return a batch."""
        return inputs

    def predict(self, counts: list[int]) -> Iterator[list[str]]:
        """Yield a piece of each request."""
        for number in range(max(counts)):
            yield [f"piece {number:4} of it " for _ in counts]

    def unbatch(self, outputs: Any) -> Iterator[list[str]]:
        """Yield the pieces of each step."""
        yield from outputs

    def encode_response(self, outputs: Any) -> Iterator[list[str]]:
        """Yield the pieces of each step as events."""
        for output in outputs:
            yield [f"data: {json.dumps(one)}\n\n" for one in output]


if __name__ == "__main__":
    server = litserve.LitServer(
        Pieces(max_batch_size=64, batch_timeout=0.005, stream=True),
        accelerator="cpu", devices=1, workers_per_device=1,
    )  # fmt: skip
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False,
        generate_client_file=False,
    )  # fmt: skip
