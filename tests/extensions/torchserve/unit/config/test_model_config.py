"""model-config.yaml, and the order in which TorchServe's settings hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from extensions.torchserve.config.model_config import (
    INITIAL_WORKERS,
    model_options,
    read_model_config,
    why_refused,
    worker_options,
    yaml_options,
)
from extensions.torchserve.config.sequences import MAX_WAITING, SequenceLimits
from extensions.torchserve.config.settings import TorchServeConfig
from headrace.errors import ConfigError


def _read(folder: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    path = folder / "model-config.yaml"
    path.write_text(text)
    values, problems, _ = read_model_config(path)
    return values, problems


def test_values_of_the_right_type_are_read(tmp_path: Path) -> None:
    text = "minWorkers: 1\nmaxWorkers: 4\nbatchSize: 8\ndeviceType: gpu\ndeviceIds: [2, 3]\n"
    values, problems = _read(tmp_path, text + "handler:\n  profile: true\npt2: {a: [1]}\n")
    assert problems == []
    assert values == {
        "minWorkers": 1,
        "maxWorkers": 4,
        "batchSize": 8,
        "deviceType": "gpu",
        "deviceIds": [2, 3],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("batchSize: '8'", "batchSize: expected an integer of 1 or more, got '8'"),
        ("batchSize: 0", "batchSize: expected an integer of 1 or more, got 0"),
        ("minWorkers: true", "minWorkers: expected an integer of 1 or more, got True"),
        ("responseTimeout: 1.5", "responseTimeout: expected an integer of 0 or more, got 1.5"),
        ("deviceIds: 0", "deviceIds: expected a list of numbers of GPUs, got 0"),
        ("deviceIds: [0, a]", "deviceIds: expected a list of numbers of GPUs, got [0, 'a']"),
        ("deviceType: tpu", "deviceType: expected cpu or gpu, got 'tpu'"),
        ("jobQueueSize: {a: 1}", "jobQueueSize: expected an integer of 0 or more, got nothing"),
        ("useVenv: true", "useVenv: it has no effect here"),
        ("useJobTicket: 1", "useJobTicket: expected true or false, got 1"),
        ("parallelType: x", "parallelType: expected pp, tp, pptp, custom, got 'x'"),
        ("[1]", "it is no mapping"),
        ("a: [", "it is no YAML: while parsing"),
        ("a: \x01", "it is no YAML: unacceptable character"),
    ],
)
def test_a_wrong_value_is_left_out_with_a_reason(tmp_path: Path, text: str, problem: str) -> None:
    values, problems = _read(tmp_path, text)
    assert values == {}
    (found,) = problems
    assert found.startswith(f"model-config.yaml: {problem}")


def test_too_few_workers_count_as_one(tmp_path: Path) -> None:
    values, problems = _read(tmp_path, "minWorkers: 0\nmaxWorkers: 2\n")
    assert values == {"minWorkers": 1, "maxWorkers": 2}
    assert problems == ["model-config.yaml: minWorkers: expected an integer of 1 or more, got 0"]


def test_an_empty_file_and_a_missing_one_have_no_values(tmp_path: Path) -> None:
    assert _read(tmp_path, "# nothing\n") == ({}, [])
    missing = read_model_config(tmp_path / "missing.yaml")
    assert missing.values == {}
    assert missing.problems == ["missing.yaml: it cannot be read: No such file or directory"]
    assert not missing.is_readable


def test_aliases_cannot_make_a_file_long(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60)]
    assert _read(tmp_path, "\n".join([*lines, "batchSize: 2"]))[0] == {"batchSize": 2}


def test_a_file_that_is_too_deep_is_an_error_and_a_deep_one_is_read(tmp_path: Path) -> None:
    for open_, close in ("[]", "{}"):
        deep = "batchSize: 2\nhandler: " + open_ * 90 + close * 90
        assert _read(tmp_path, deep) == ({"batchSize": 2}, [])
        with pytest.raises(ConfigError, match="nested more than 100 levels deep; flatten it"):
            _read(tmp_path, "handler: " + open_ * 5000 + close * 5000)


def test_options_of_a_file() -> None:
    assert yaml_options(
        {"batchSize": 10_000, "maxBatchDelay": 0, "startupTimeout": 5, "deviceType": "cpu"}
    ) == {"max_batch_size": 4096, "load_timeout_s": 5, "device": "cpu"}
    assert yaml_options({"clientTimeoutInMills": 250}) == {"expires_s": 0.25}
    assert yaml_options({"clientTimeoutInMills": 0}) == {}
    assert yaml_options({"minWorkers": 2}) == {}
    assert yaml_options({"minWorkers": 2, "maxWorkers": 1}) == {}
    assert yaml_options({"deviceType": "gpu", "deviceIds": [1]}) == {"device_ids": [1]}


def test_the_number_of_model_processes() -> None:
    assert worker_options(2, 2) == {"total_replicas": 2}
    assert worker_options(0, 5) == {"total_replicas": 0}
    assert worker_options(1, 999) == {"replicas": 1, "min_replicas": 1, "max_replicas": 256}


def _options(
    declared: dict[str, Any] | None = None,
    values: dict[str, Any] | None = None,
    requested: Mapping[str, int] | None = None,
    workers: int = 0,
    **config: Any,
) -> dict[str, Any]:
    models = {"m": {"1.0": declared}} if declared is not None else {}
    settings = TorchServeConfig(models=models, **config)
    return model_options(settings, "m", "1.0", values or {}, requested or {}, workers=workers)


def test_defaults() -> None:
    assert _options() == {
        "max_batch_size": 1,
        "max_batch_delay_ms": 100,
        "max_queue_depth": 100,
        "total_replicas": 0,
        "timeout_s": 120,
        "load_timeout_s": 120,
    }
    assert _options(workers=3)["total_replicas"] == 3
    assert _options(workers=3, default_workers_per_model=2)["total_replicas"] == 2


BATCH = {"batchSize": 3, "maxBatchDelay": 30}
YAML = {"batchSize": 5, "maxBatchDelay": 50}
TIMES = {"responseTimeout": 3, "startupTimeout": 30}


@pytest.mark.parametrize(
    ("declared", "values", "requested", "expected"),
    [
        (BATCH, YAML, {"batchSize": 7, "maxBatchDelay": 70}, (7, 70)),
        (BATCH, YAML, {"batchSize": -1, "maxBatchDelay": -100}, (5, 50)),
        (BATCH, YAML, {"batchSize": 0, "maxBatchDelay": 0}, (1, 0)),
        (BATCH, {"batchSize": 0, "maxBatchDelay": 0}, {}, (3, 30)),
        (BATCH, {}, {}, (3, 30)),
        ({"batchSize": "x"}, {}, {}, (1, 100)),
    ],
)
def test_a_request_wins_for_batches(
    declared: dict[str, Any], values: dict[str, Any], requested: dict[str, int], expected: object
) -> None:
    found = _options(declared, values, requested)
    assert (found["max_batch_size"], found["max_batch_delay_ms"]) == expected


@pytest.mark.parametrize(
    ("declared", "values", "expected"),
    [
        (TIMES, {"responseTimeout": 5, "startupTimeout": 50}, (5, 50)),
        (TIMES, {}, (3, 30)),
        ({}, {}, (7, 70)),
    ],
)
def test_a_request_loses_for_timeouts(
    declared: dict[str, Any], values: dict[str, Any], expected: object
) -> None:
    requested = {"responseTimeout": 7, "startupTimeout": 70}
    found = _options(declared, values, requested, default_response_timeout=9)
    assert (found["timeout_s"], found["load_timeout_s"]) == expected


def test_numbers_of_zero_or_less_that_a_request_gives_count() -> None:
    small = {"batchSize": 0, "maxBatchDelay": -2, "responseTimeout": 0, "startupTimeout": -5}
    found = _options(requested=small)
    assert found["options"] == {"too_small": small}
    assert (found["max_batch_size"], found["max_batch_delay_ms"]) == (1, 0)
    assert found["timeout_s"] == found["load_timeout_s"] == 0.001
    # model-config.yaml wins for timeouts.
    found = _options(values=TIMES, requested=small)
    assert (found["timeout_s"], found["load_timeout_s"]) == (3, 30)
    assert found["options"] == {"too_small": {"batchSize": 0, "maxBatchDelay": -2}}
    not_given = {
        "batchSize": -1,
        "maxBatchDelay": -100,
        "responseTimeout": -1,
        "startupTimeout": -1,
    }
    assert _options(requested=not_given) == _options()
    assert _options(default_startup_timeout=0)["load_timeout_s"] == 0.001
    assert _options(requested={"maxBatchDelay": 0})["max_batch_delay_ms"] == 0


def test_timeouts_without_any_other_are_the_default() -> None:
    found = _options(default_response_timeout=9, default_startup_timeout=90)
    assert (found["timeout_s"], found["load_timeout_s"]) == (9, 90)


@pytest.mark.parametrize(
    ("declared", "values", "initial", "expected"),
    [
        ({"minWorkers": 2, "maxWorkers": 2}, {"minWorkers": 3, "maxWorkers": 3}, 4, 3),
        ({"minWorkers": 2, "maxWorkers": 2}, {"minWorkers": 3, "maxWorkers": 1}, 4, 2),
        ({"minWorkers": 0, "maxWorkers": 0}, {}, None, 0),
        ({}, {}, 4, 4),
        ({}, {}, 0, 0),
        ({}, {}, None, 5),
    ],
)
def test_who_decides_the_number_of_model_processes(
    declared: dict[str, Any], values: dict[str, Any], initial: int | None, expected: int
) -> None:
    requested = {} if initial is None else {INITIAL_WORKERS: initial}
    found = _options(declared, values, requested, default_workers_per_model=5)
    assert found["total_replicas"] == expected


def test_a_model_with_sequences_has_one_model_process() -> None:
    values = {"sequenceBatching": True, "minWorkers": 2, "maxWorkers": 4}
    assert _options(values=values)["total_replicas"] == 1
    assert "max_replicas" not in _options(values=values)
    found = _options(values=values, requested={INITIAL_WORKERS: 0})
    assert found["total_replicas"] == 1
    assert yaml_options(values) == {"total_replicas": 1, "options": {"sequences": True}}
    none = {"sequenceBatching": True}
    assert _options(values=none, requested={INITIAL_WORKERS: 0})["total_replicas"] == 0


def test_an_idle_time_alone_makes_no_sequences() -> None:
    idle = {"sequenceMaxIdleMSec": 1000, "maxNumSequence": 5}
    assert yaml_options(idle) == {}
    assert _options(values=idle, requested={INITIAL_WORKERS: 3})["total_replicas"] == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"maxNumSequence": 5}, None),
        ({"sequenceMaxIdleMSec": 0, "maxNumSequence": 5}, None),
        ({"sequenceMaxIdleMSec": 9}, SequenceLimits(1, 1, 9, 0)),
        (
            {
                "sequenceMaxIdleMSec": 9, "maxNumSequence": 2, "maxSequenceJobQueueSize": 3,
                "sequenceTimeoutMSec": 4,
            },
            SequenceLimits(2, 3, 9, 4),
        ),
        (
            {"sequenceMaxIdleMSec": 9, "maxSequenceJobQueueSize": 10**9},
            SequenceLimits(1, MAX_WAITING, 9, 0),
        ),
    ],
)  # fmt: skip
def test_the_limits_of_sequences(values: dict[str, Any], expected: SequenceLimits | None) -> None:
    """Without an idle time there are none, as no sequence would end."""
    options = yaml_options({"sequenceBatching": True, **values})["options"]
    assert SequenceLimits.of_option(options["sequences"]) == expected


def test_a_limit_of_sequences_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("maxNumSequence: 0\nsequenceTimeoutMSec: soon\n")
    assert read_model_config(path).problems == [
        "c.yaml: maxNumSequence: expected an integer of 1 or more, got 0",
        "c.yaml: sequenceTimeoutMSec: expected an integer of 0 or more, got 'soon'",
    ]


def test_a_job_ticket_is_an_option() -> None:
    assert yaml_options({"useJobTicket": True}) == {"options": {"job_ticket": True}}
    assert yaml_options({"useJobTicket": False}) == {}


def test_only_the_operator_allows_pickled_files(tmp_path: Path) -> None:
    assert _options({"weightsOnly": False})["weights_only"] is False
    assert "weights_only" not in _options({"weightsOnly": True})
    values, _ = _read(tmp_path, "weightsOnly: false\n")
    assert "weights_only" not in {**yaml_options(values), **_options(values=values)}


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("parallelType: tp\ntorchrun:\n  nproc-per-node: 4\n", "parallelType: tp with 4 processes"),
        ("parallelLevel: 2\nparallelType: custom\n", "parallelType: custom with 2 processes"),
        ("parallelType: pp\ntorchrun: {nproc-per-node: 1}\n", ""),
        ("parallelType: pp\n", ""),
        ("parallelLevel: 4\n", ""),
        ("torchrun: {nproc-per-node: x}\nparallelType: tp\n", ""),
    ],
)
def test_a_model_in_several_processes_is_refused(tmp_path: Path, text: str, refused: str) -> None:
    found = why_refused(_read(tmp_path, text)[0])
    assert found.startswith(refused)
    assert bool(found) == bool(refused)


def test_a_queue_of_its_own() -> None:
    assert _options(job_queue_size=7)["max_queue_depth"] == 7
    assert _options(values={"jobQueueSize": 9}, job_queue_size=7)["max_queue_depth"] == 9
