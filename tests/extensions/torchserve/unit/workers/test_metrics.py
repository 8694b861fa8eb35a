"""What a worker reports for TorchServe's interfaces: its batches, its processes and its host."""

from __future__ import annotations

import time
from typing import Any, Literal

from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.metrics.recorder import TorchServeMetrics
from extensions.torchserve.workers.metrics import WorkerMetrics
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.message import Message
from headrace.observability.worker_report import DeviceFigures, Figures, HostFigures
from workers.jobs.leased_job import Batch, LeasedJob
from workers.models.served_model import ServedModel
from workers.replicas.replica import LOAD_TOO_LONG, Replica

GIB = 1024**3
FIGURES = Figures(
    HostFigures("h", cpu_ratio=0.5, memory_bytes=GIB),
    [DeviceFigures("0", busy_ratio=0.25)],
)
GOOD, BAD = [True, b"1", ""], [False, "handler-error"]


class Worker:
    """The metrics of one worker with a model `m`, and the lines that it has written."""

    def __init__(
        self,
        mode: Literal["log", "prometheus"] = "log",
        share: str = "0/1",
        figures: Figures = FIGURES,
        **config: Any,
    ) -> None:
        self.written: list[str] = []
        self.figures = figures
        chosen = TorchServeConfig(metrics_mode=mode, **config)
        metrics = TorchServeMetrics(chosen, "worker", self.written.append)
        environ = {"HEADRACE_WORKER_SHARE": share}
        self.metrics = WorkerMetrics(metrics, chosen, lambda: self.figures, environ)
        self.replicas = [Replica({"device": "cpu"}, {}) for _ in range(2)]
        config_of_model = ModelConfig(name="m", handler="echo", version="2.0")
        self.model = ServedModel(config_of_model, 0, self.replicas)

    def values(self) -> dict[str, list[str]]:
        """The values of the lines by the metric, and its dimensions in angle brackets."""
        found: dict[str, list[str]] = {}
        for line in "".join(self.written).splitlines():
            name, _, rest = line.split(" - ")[1].partition(".")
            value, labels = rest.split("|#")[:2]
            found.setdefault(f"{name}<{labels}>", []).append(value.split(":")[1])
        return found


def job(version: str, enqueued_at: float) -> LeasedJob:
    message = Message(
        "id", "m", b"1", eta_s=None, expires_s=None, timeout_s=None, ignore_result=False,
        max_retries=None, retries=0, root_id="id", parent_id=None, group=None, version=version,
    )  # fmt: skip
    made = LeasedJob("id", "t", message, 0, enqueued_at, enqueued_at, 1)
    made.dispatched_at = enqueued_at + 0.25
    return made


def test_the_times_of_a_batch_are_those_of_its_jobs_that_succeeded() -> None:
    worker = Worker()
    jobs = [job("", 100.0), job("", 100.0), job("2.0", 100.0), job("", 100.0)]
    batch = Batch(jobs, "full", 100.25, 200.0)
    worker.metrics.finished(worker.model, batch, [GOOD, GOOD, GOOD, BAD], [100, 200, 50, 0], 101)
    assert worker.values() == {
        "QueueTime<Level:Host>": ["250.0"] * 3,
        "ts_inference_latency_microseconds<model_name:m,model_version:default>": ["2000000.0"],
        "ts_inference_latency_microseconds<model_name:m,model_version:2.0>": ["1000000.0"],
        "ts_queue_latency_microseconds<model_name:m,model_version:default>": ["500000.0"],
        "ts_queue_latency_microseconds<model_name:m,model_version:2.0>": ["250000.0"],
        "WorkerThreadTime<Level:Host>": ["400.0"],
    }
    assert len(worker.written) == 1


def test_redis_gets_one_command_for_many_batches() -> None:
    worker = Worker("prometheus")
    for _ in range(3):
        batch = Batch([job("", 100.0)] * 2, "full", 100.25, 200.0)
        worker.metrics.finished(worker.model, batch, [GOOD, GOOD], [0, 0, 0, 0], 101)
    # The first one is written at once.
    assert worker.metrics.due_at <= time.monotonic()
    (command,) = worker.metrics.commands([])
    assert worker.metrics.due_at == float("inf")
    assert len(command) == 3 + 2 + 3 * 4
    assert worker.metrics.commands([]) == []
    assert worker.written == []


def test_a_process_has_the_name_of_a_worker_of_torchserve() -> None:
    first, second = Worker(), Worker(share="1/2")
    for worker in (first, second):
        worker.metrics.loaded(worker.model, worker.replicas[1], 1.2349)
    assert first.values() == {"WorkerLoadTime<WorkerName:W-9001-m_2.0,Level:Host>": ["1234.0"]}
    assert list(second.values()) == ["WorkerLoadTime<WorkerName:W-9101-m_2.0,Level:Host>"]
    assert "] W-9101-m_2.0 TS_METRICS - " in second.written[0]


def test_the_first_worker_of_a_host_reports_it_and_each_its_gpus() -> None:
    first, second = Worker(), Worker(share="1/2")
    for worker in (first, second):
        worker.metrics.commands([])
    assert "CPUUtilization<Level:Host>" in first.values()
    assert set(second.values()) == {"GPUUtilization<Level:Host,DeviceId:0>"}
    first.metrics.commands([])
    assert len(first.values()["CPUUtilization<Level:Host>"]) == 1, "the interval is 60 s"


def test_a_host_that_was_not_measured_yet_is_reported_later() -> None:
    worker = Worker(figures=Figures())
    worker.metrics.commands([])
    assert worker.values() == {}
    worker.figures = FIGURES
    worker.metrics.commands([])
    assert worker.values()["CPUUtilization<Level:Host>"] == ["50.0"]


def test_the_host_is_left_out_if_it_is_disabled_or_redis_has_it() -> None:
    for worker in (Worker(disable_system_metrics=True), Worker("prometheus")):
        assert worker.metrics.commands([]) == []
        assert worker.values() == {}


def test_the_rows_of_a_handler_are_lines_with_its_requests() -> None:
    worker = Worker()
    row = ["HandlerTime", "Milliseconds", "gauge", 2, [["ModelName", "m"]], ["a", "b"]]
    before = int(time.time())
    worker.metrics.reported(worker.model, worker.replicas[0], [row, row])
    (text,) = worker.written
    assert text.count("] W-9000-m_2.0-stdout MODEL_METRICS - HandlerTime.ms:2.0|#ModelName:m|") == 2
    assert ",requestID:a,b,timestamp:" in text
    assert int(text.rpartition("timestamp:")[2]) >= before


def test_a_failed_load_is_logged_with_the_words_of_torchserve() -> None:
    metrics, error = Worker().metrics, "a frame\nValueError: words"
    assert metrics.load_failed(error) == f"Backend worker process died.\n{error}"
    slow = f"The stacks of the process:\n  a frame\n{LOAD_TOO_LONG}, 5 s"
    assert metrics.load_failed(slow) == (
        "Backend worker error\n"
        "org.pytorch.serve.wlm.WorkerInitializationException: "
        f"Backend worker did not respond in given time\n{slow}"
    )


def test_the_worker_knows_the_scripts_of_the_commands() -> None:
    worker = Worker("prometheus")
    worker.metrics.loaded(worker.model, worker.replicas[0], 1.5)
    (command,) = worker.metrics.totals([])
    assert command[1] in [known.sha for known in worker.metrics.scripts]
