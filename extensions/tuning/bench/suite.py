"""TorchServe's benchmark suite: its YAML, and `ab_report.csv` with its columns by name."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from extensions.tuning.bench import statistics
from extensions.tuning.bench.load.rows import Row
from extensions.tuning.bench.measurement import Load, Measurement
from headrace.config.yaml_file import Document, load_yaml, read_fields
from headrace.errors import ConfigError

#: The columns, in TorchServe's order.
COLUMNS: Final = (
    "Benchmark", "TS failed requests", "TS throughput", "TS latency P50", "TS latency P90",
    "TS latency P99", "TS latency mean", "TS error rate", "Batch size", "Batch delay", "Workers",
    "Model", "Concurrency", "Input", "Requests", "Model_p50", "Model_p90", "Model_p99",
    "Queue time p50", "Queue time p90", "Queue time p99", "predict_mean", "handler_time_mean",
    "waiting_time_mean", "worker_thread_mean", "cpu_percentage_mean", "memory_percentage_mean",
    "gpu_percentage_mean", "gpu_memory_percentage_mean", "gpu_memory_used_mean",
)  # fmt: skip
#: The parts of the server; the client's CPU is not the server's.
_SERVER: Final = ("api", "redis", "worker", "model", "server")


_Count = Annotated[int, Meta(ge=1)]


class _Mode(msgspec.Struct):
    """A mode of a model in the suite: the cases are all workers with all batch sizes."""

    input: str = ""
    url: str = ""
    workers: list[_Count] = msgspec.field(default_factory=lambda: [1])
    batch_size: list[_Count] = msgspec.field(default_factory=lambda: [1])
    batch_delay: Annotated[float, Meta(ge=0)] = 100.0
    requests: _Count = 10_000
    concurrency: _Count = 10
    processors: list[Any] = msgspec.field(default_factory=lambda: ["cpu"])
    content_type: str = ""
    # What follows is about how TorchServe's suite starts a server, and is not used.
    benchmark_engine: str = "ab"
    backend_profiling: bool = False
    handler_profiling: bool = False
    exec_env: str = "local"
    docker_runtime: str = ""
    dockerhub_image: str = ""
    config_properties: str = ""
    inference_model_url: str = ""


class _Config(msgspec.Struct):
    """The file that lists those of the models."""

    models: list[str]
    hardware: str = ""
    ts_version: Any = None
    metrics_cmd: Any = None
    report_cmd: Any = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report: a model with these options, under this load.

    Attributes:
        name: mode, model, workers and batch size, as TorchServe's suite names them.
        model: the name of the model in the suite.
        url: its archive.
        content_type: its type; "" for that of its name.
        batch_delay_ms: how long a batch waits to fill.
    """

    name: str
    model: str
    url: str
    input: str
    content_type: str
    workers: int
    batch_size: int
    batch_delay_ms: float
    device: Literal["cpu", "cuda"]
    requests: int
    concurrency: int

    @property
    def options(self) -> dict[str, Any]:
        """Return the model's options of this case."""
        return {
            "max_batch_size": self.batch_size,
            "max_batch_delay_ms": self.batch_delay_ms,
            "replicas": self.workers,
            "device": self.device,
        }


def read_suite(file: Path) -> list[Case]:
    """Return the cases of a suite: of one model's file, or of the file that lists several.

    Raises:
        ConfigError: a file cannot be read, or a key or value of it is wrong.
    """
    document = load_yaml(file, what="benchmark suite")
    if "models" not in document.data:
        return list(_cases(document, ""))
    config = _Config(**read_fields(document, (), _Config))
    _check(document)
    found: list[Case] = []
    for name in config.models:
        found += _cases(load_yaml(_beside(file, name), what="benchmark suite"), config.hardware)
    return found


def _check(document: Document) -> None:
    if document.problems:
        raise ConfigError("\n".join(document.problems))


def _beside(file: Path, name: str) -> Path:
    """Return a model's file: in the folder of the list, or in TorchServe's folder for them."""
    places = (file.parent / name, file.parent / "models_config" / name)
    return next((one for one in places if one.exists()), places[0])


def _cases(document: Document, hardware: str) -> Iterator[Case]:
    for model, modes in document.data.items():
        if not isinstance(modes, dict):
            document.report((model,), "expected modes of the model, such as eager_mode")
            continue
        for mode in modes:
            values = read_fields(document, (model, mode), _Mode)
            _check(document)
            yield from _of_mode(str(model), str(mode), _Mode(**values), hardware)
    _check(document)


def _of_mode(model: str, mode: str, given: _Mode, hardware: str) -> Iterator[Case]:
    devices = [_device(one) for one in given.processors]
    if hardware:
        devices = [one for one in devices if one == ("cuda" if hardware == "gpu" else "cpu")]
    several = len(devices) > 1
    for device, workers, batch_size in product(devices, given.workers, given.batch_size):
        name = f"{mode}_{model}_w{workers}_b{batch_size}"
        yield Case(
            name=f"{name}_{device}" if several else name, model=model, url=given.url,
            input=given.input, content_type=given.content_type, workers=workers,
            batch_size=batch_size, batch_delay_ms=given.batch_delay, device=device,
            requests=given.requests, concurrency=given.concurrency,
        )  # fmt: skip


def _device(processor: Any) -> Literal["cpu", "cuda"]:
    # `cpu`, or `{gpus: all}`.
    return "cuda" if isinstance(processor, dict) or processor == "gpu" else "cpu"


def report_row(case: Case, found: Measurement, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the line of `ab_report.csv` for a case with one load; what is not known is 0."""
    load = found.loads[-1]
    queue = statistics.spread([sum(row.stages[:3]) for row in rows if row.stages])
    model = statistics.spread([sum(row.stages[3:6]) for row in rows if row.stages])
    other = load.stages["other"].mean if "other" in load.stages else 0.0
    failed = load.requests - load.succeeded
    values = {
        "Benchmark": "AB", "TS failed requests": failed, "TS throughput": load.rate,
        "TS latency P50": load.latency.p50, "TS latency P90": load.latency.p90,
        "TS latency P99": load.latency.p99, "TS latency mean": load.latency.mean,
        "TS error rate": 100 * failed / load.requests if load.requests else 0.0,
        "Batch size": case.batch_size, "Batch delay": case.batch_delay_ms,
        "Workers": case.workers, "Model": case.url or found.model,
        "Concurrency": case.concurrency, "Input": case.input, "Requests": case.requests,
        "Model_p50": model.p50, "Model_p90": model.p90, "Model_p99": model.p99,
        "Queue time p50": queue.p50, "Queue time p90": queue.p90, "Queue time p99": queue.p99,
        "predict_mean": model.mean, "handler_time_mean": model.mean,
        "waiting_time_mean": queue.mean, "worker_thread_mean": other,
        **_resources(load, found.environment),
    }  # fmt: skip
    every = {name: values.get(name, 0.0) for name in COLUMNS}
    return {name: round(n, 2) if isinstance(n, float) else n for name, n in every.items()}


def _resources(load: Load, environment: Mapping[str, Any]) -> dict[str, float]:
    used = [load.usage[part] for part in _SERVER if part in load.usage]
    cores, memory = environment.get("cores") or 0, environment.get("memory_mb") or 0
    found = {}
    if (device := load.usage.get("device")) is not None:
        found["gpu_percentage_mean"] = 100 * device.busy
        found["gpu_memory_used_mean"] = device.memory_mb
        if device.memory_total_mb:
            found["gpu_memory_percentage_mean"] = 100 * device.memory_mb / device.memory_total_mb
    if used and cores and load.duration_s:
        cpu_s = sum(one.cpu_s for one in used)
        found["cpu_percentage_mean"] = 100 * cpu_s / (load.duration_s * cores)
    if used and memory:
        found["memory_percentage_mean"] = 100 * sum(one.memory_mb for one in used) / memory
    return found


def write_report(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `ab_report.csv`; the file is complete or as it was."""
    partly = file.with_suffix(".part")
    with partly.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partly.replace(file)
