"""Predictions on TorchServe's URLs and on the native route.

    python -m benchmarks.torchserve.native_route

The same model takes the same body on both, in turn. The ratio is that of the rates of a pair. The
CPU is that of the API's process for each request, because other load on the machine changes it less
than the rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.common.http_load import WAIT
from benchmarks.common.inputs import BODY
from benchmarks.common.pairs import Pair, Way, arguments_of, measure_pairs, medians
from benchmarks.common.systems import Headrace
from benchmarks.common.tables import Table
from extensions.torchserve.config.settings import TorchServeConfig, write_config
from tests.extensions.torchserve.harness.archives import write_archive

#: The models: a handler of Headrace, and one of an archive, which gets all headers.
MODELS: Final = ("echo", "archive")
HANDLER: Final = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""


@contextmanager
def stack() -> Iterator[Headrace]:
    """Run a server with both kinds of URLs and models."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = write_archive(folder / "archive", "handler.py", {"handler.py": HANDLER})
        config = TorchServeConfig(disable_token_authorization=True)
        write_config(folder / "config.properties", config)
        model = {"source": str(archive), "max_queue_depth": 10_000_000, "max_batch_size": 32}
        environ = {"HEADRACE_TORCHSERVE": str(folder / "config.properties")}
        with Headrace(events=False, models={"archive": model}, environ=environ) as running:
            yield running


def measure(running: Headrace, model: str, seconds: float, rounds: int) -> list[Pair]:
    """Return the loads of a model on both kinds of URLs, in pairs."""
    native = Way(f"/api/v1/models/{model}/jobs", BODY, WAIT)
    return measure_pairs(running, native, Way(f"/predictions/{model}", BODY), seconds, rounds)


def main() -> None:
    """Measure both models and print the table."""
    arguments = arguments_of(__doc__)
    table = Table(
        "model", "native, 1/s", "TorchServe's, 1/s", "ratio", "native CPU s", "CPU s per 1,000"
    )
    with stack() as running:
        for model in MODELS:
            pairs = measure(running, model, arguments.seconds, arguments.rounds)
            table.add(model, *medians(pairs, "api"))


if __name__ == "__main__":
    main()
