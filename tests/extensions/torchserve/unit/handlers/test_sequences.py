"""Sequences of requests: their ids, their order, and a request that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.handlers.handler import turns
from tests.extensions.torchserve.harness.archives import (
    json_of,
    loaded,
    request,
    run,
    write_archive,
)
from workers.model_process.executor import BatchExecutor

#: Counts the requests of each sequence, as a stateful handler does.
COUNTS = """
def handle(data, context):
    if data is None:
        context.cache = {}
        return None
    found = []
    for n in range(len(data)):
        sequence = context.get_sequence_id(n)
        context.cache[sequence] = context.cache.get(sequence, 0) + 1
        headers = context.get_all_request_header(n)
        found.append([sequence, context.cache[sequence], len(data),
                      headers.get("ts_request_sequence_start")])
    if any(row["body"] == "raise" for row in data):
        raise ValueError("one is bad")
    return found
"""


def served(folder: Path, text: str = "sequenceBatching: true\n", **options: Any) -> BatchExecutor:
    files = {"service.py": COUNTS, "c.yaml": text}
    return loaded(
        write_archive(folder, "service", files, configFile="c.yaml"), "service", **options
    )


def of(sequence: str, body: str = "x", name: str = "ts_request_sequence_id") -> Any:
    return request(body, headers={name: sequence} if sequence else {})


def test_requests_of_one_sequence_run_one_after_another(tmp_path: Path) -> None:
    executor = served(tmp_path)
    outcomes = run(executor, [of("a"), of("b"), of("a"), of("a"), of("b")])
    assert [json_of(one) for one in outcomes] == [
        ["a", 1, 2, None], ["b", 1, 2, None], ["a", 2, 2, None], ["a", 3, 1, None],
        ["b", 2, 2, None],
    ]  # fmt: skip
    assert json_of(run(executor, [of("a")])[0]) == ["a", 4, 1, None]


def test_a_request_without_an_id_begins_a_sequence(tmp_path: Path) -> None:
    outcomes = run(served(tmp_path), [of(""), of("")])
    (one, *rest), (other, *_) = [json_of(outcome) for outcome in outcomes]
    assert rest == [1, 2, "true"]
    assert one.startswith("ts-seq-")
    assert one != other


def test_the_names_of_the_headers_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = TorchServeConfig(ts_header_key_sequence_id="X-Session")
    outcomes = run(served(tmp_path, config=config), [of("a", name="x-session")])
    assert json_of(outcomes[0])[0] == "a"


def test_a_failed_call_is_not_repeated_as_its_state_has_changed(tmp_path: Path) -> None:
    """TorchServe fails all requests of such a batch too."""
    executor = served(tmp_path)
    good, bad = run(executor, [of("a"), of("b", "raise")])
    assert not good[0]
    assert not bad[0]
    assert json_of(run(executor, [of("a")])[0])[1] == 2


def test_without_sequences_a_batch_is_one_call(tmp_path: Path) -> None:
    outcomes = run(served(tmp_path, "batchSize: 4\n"), [of("a"), of("a")])
    assert [json_of(one) for one in outcomes] == [["a", 1, 2, None], ["a", 2, 2, None]]


def test_a_turn_has_one_request_of_each_sequence() -> None:
    assert turns(["a", "a", "b", "c", "b"], [0, 1, 2, 4]) == [[0, 2], [1, 4]]
    assert turns([], []) == []
