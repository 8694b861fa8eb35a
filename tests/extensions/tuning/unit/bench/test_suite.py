"""TorchServe's benchmark suite: its YAML and its columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from extensions.tuning.bench.measurement import Usage
from extensions.tuning.bench.suite import COLUMNS, Case, read_suite, report_row
from headrace.errors import ConfigError
from tests.extensions.tuning.harness.measurements import load, measurement

MODEL = """
vgg16:
  eager_mode:
    benchmark_engine: ab
    url: https://torchserve.pytorch.org/mar_files/vgg16.mar
    workers: [1, 2]
    batch_delay: 100
    batch_size: [1, 8]
    input: kitten.jpg
    requests: 10000
    concurrency: 10
    backend_profiling: False
    exec_env: local
    processors:
      - cpu
      - gpus: all
"""


def test_the_columns_are_torchserves() -> None:
    assert len(COLUMNS) == len(set(COLUMNS)) == 30
    assert COLUMNS[0] == "Benchmark"
    assert COLUMNS[-1] == "gpu_memory_used_mean"


def test_each_processor_worker_count_and_batch_size_is_a_case(tmp_path: Path) -> None:
    file = tmp_path / "vgg16.yaml"
    file.write_text(MODEL)
    cases = read_suite(file)
    assert [case.name for case in cases][:4] == [
        "eager_mode_vgg16_w1_b1_cpu", "eager_mode_vgg16_w1_b8_cpu",
        "eager_mode_vgg16_w2_b1_cpu", "eager_mode_vgg16_w2_b8_cpu",
    ]  # fmt: skip
    assert len(cases) == 8
    assert cases[-1].options == {
        "max_batch_size": 8, "max_batch_delay_ms": 100.0, "replicas": 2, "device": "cuda",
    }  # fmt: skip
    assert (cases[0].requests, cases[0].concurrency) == (10_000, 10)


def test_a_list_of_models_chooses_the_hardware(tmp_path: Path) -> None:
    (tmp_path / "models_config").mkdir()
    (tmp_path / "models_config/vgg16.yaml").write_text(MODEL)
    config = tmp_path / "config.yaml"
    config.write_text("ts_version: {branch: master}\nmodels: [vgg16.yaml]\nhardware: gpu\n")
    cases = read_suite(config)
    assert {case.device for case in cases} == {"cuda"}
    assert cases[0].name == "eager_mode_vgg16_w1_b1"


def test_requests_and_concurrency_have_torchserves_defaults(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("m: {eager_mode: {url: m.mar}}\n")
    (case,) = read_suite(file)
    assert (case.requests, case.concurrency, case.workers) == (10_000, 10, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m: {eager_mode: {batchsize: [1]}}", "m.yaml:1: m.eager_mode.batchsize: unknown key"),
        ("m: {eager_mode: {workers: many}}", "m.yaml:1: m.eager_mode.workers"),
        ("m: {eager_mode: {batch_size: [0]}}", "m.yaml:1: m.eager_mode.batch_size"),
        ("m: {eager_mode: {requests: -1}}", "m.yaml:1: m.eager_mode.requests"),
        ("m: [1]", "m.yaml:1: m: expected modes of the model"),
        ("models: [gone.yaml]", "gone.yaml"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_suite(file)
    assert words in caught.value.message


CASE = Case(
    name="eager_mode_vgg16_w1_b8", model="vgg16", url="vgg16.mar", input="kitten.jpg",
    content_type="", workers=1, batch_size=8, batch_delay_ms=100.0, device="cuda", requests=10_000,
    concurrency=10,
)  # fmt: skip
SERVER = {
    "api": Usage(cpu_s=20, memory_mb=100),
    "model": Usage(cpu_s=100, memory_mb=1500, processes=2),
    "client": Usage(cpu_s=1000, memory_mb=5000),
}


def row_of(usage: dict[str, Usage]) -> dict[str, float]:
    """Return the figures of the host; the load has 30 s on 8 cores and 32,000 MiB."""
    found = report_row(CASE, measurement(loads=[load(rate=100, requests=3000, usage=usage)]), [])
    assert tuple(found) == COLUMNS
    return {name: value for name, value in found.items() if name in COLUMNS[25:]}


def test_the_host_columns_are_of_the_server_and_of_all_devices() -> None:
    device = Usage(cpu_s=0, memory_mb=20 * 1024, memory_total_mb=80 * 1024, busy=0.62)
    assert row_of({**SERVER, "device": device}) == {
        "cpu_percentage_mean": 50.0,
        "memory_percentage_mean": 5.0,
        "gpu_percentage_mean": 62.0,
        "gpu_memory_percentage_mean": 25.0,
        "gpu_memory_used_mean": 20_480.0,
    }


def test_without_a_device_its_columns_are_0_as_in_torchserves_report() -> None:
    assert {name: value for name, value in row_of(SERVER).items() if "gpu" in name} == {
        "gpu_percentage_mean": 0.0, "gpu_memory_percentage_mean": 0.0, "gpu_memory_used_mean": 0.0,
    }  # fmt: skip
    assert set(row_of({}).values()) == {0.0}
