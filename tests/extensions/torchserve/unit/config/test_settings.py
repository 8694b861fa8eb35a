"""The configuration of TorchServe's interfaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.torchserve.config.settings import (
    LAUNCHER_KEYS,
    UNUSED_KEYS,
    TorchServeConfig,
    parse_config,
    read_config,
    write_config,
)
from headrace.errors import ConfigError


def test_a_configuration_is_written_and_read_again(tmp_path: Path) -> None:
    config = TorchServeConfig(
        inference_address="https://0.0.0.0:8443",
        metrics_mode="prometheus",
        metrics_config=Path("/etc/metrics.yaml"),
        job_queue_size=7,
        enable_model_api=True,
        token_expiration_min=0.5,
        service_envelope="kserve",
        models={"noop": {"1.0": {"marName": "noop.mar", "minWorkers": 2}}},
        snapshot_folder=Path("/var/log/config"),
    )
    path = tmp_path / "torchserve.properties"
    write_config(path, config)
    assert read_config(path) == config
    write_config(path, TorchServeConfig())
    assert read_config(path) == TorchServeConfig()


def test_values_are_typed() -> None:
    found = parse_config(
        {
            "enable_model_api": "TRUE",
            "metrics_mode": "LEGACY",
            "ts_open_inference_protocol": "oip",
            "metrics_config": "",
            "job_queue_size": " 5 ",
            "models": "",
        },
        "x",
    ).config
    assert found.enable_model_api
    assert found.ts_open_inference_protocol
    assert (found.metrics_mode, found.metrics_config, found.job_queue_size) == ("legacy", None, 5)
    assert found.models == {}


def test_each_wrong_value_is_named_with_its_key_and_its_file() -> None:
    values = {"job_queue_size": "many", "metrics_mode": "loud", "models": "{", "debug": "x"}
    with pytest.raises(ConfigError) as error:
        parse_config(values, "/etc/config.properties")
    assert error.value.message.splitlines() == [
        "/etc/config.properties: job_queue_size: expected int, got 'many'",
        "/etc/config.properties: metrics_mode: expected log, prometheus or legacy, got 'loud'",
        "/etc/config.properties: models: expected JSON of models and versions: Input data was "
        "truncated",
    ]


def test_other_keys_are_returned_apart() -> None:
    found = parse_config(
        {"vmargs": "-Xmx1g", "number_of_gpu": "1", "job_que_size": "5", "plain": ""}, "x"
    )
    assert found.config == TorchServeConfig()
    assert found.launcher == {"number_of_gpu": "1"}
    assert found.unused == ["vmargs"]
    assert found.unknown == {"job_que_size": "; did you mean job_queue_size?", "plain": ""}


def test_each_key_is_in_one_place() -> None:
    fields = set(TorchServeConfig.__struct_fields__)
    assert not fields & LAUNCHER_KEYS
    assert not fields & UNUSED_KEYS
    assert not LAUNCHER_KEYS & UNUSED_KEYS
