"""What workers report about their models: counters for /metrics, and states for /ready.

A worker adds the increments since its last sweep to the hash `hr:stats:<model>` with HINCRBYFLOAT,
so totals never decrease when a worker ends. API processes do the same. The scripts that end jobs
count how they ended. The fields are named below: those of `COUNTED` by their name, those of
`LABELLED` as `<name>:<label>`. A histogram is one field, `<name>@<bounds>`. It has the count at or
below each bound, the total count and the sum, so that a scrape needs no arithmetic. `hr:stats:`
holds what concerns no model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import accumulate
from operator import add
from typing import Any, Final

import msgspec

from headrace._version import __version__
from headrace.config.model.capacity import Capacity
from headrace.config.model.shared import RETRY_BACKOFF_MAX_S, RETRY_BACKOFF_S
from headrace.redis.clock import US_PER_S

#: Packages that all components should have in the same version. None of them is imported.
PACKAGES: Final = ("celery", "kombu", "redis", "torch")


def running_versions() -> dict[str, str]:
    """Return the versions of Headrace, Python and the installed packages."""
    # Imported here because only workers call this, and readers of reports have little time.
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"headrace": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


BATCH_SIZE_BOUNDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
#: For times from 1 ms to 10 min.
SECONDS_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 600.0,
)  # fmt: skip
BATCH_SIZE: Final = "batch_size"
#: Per job: the time to its claim, for which it was held back, for which it waited for the device,
#: and to its outcome.
QUEUE_S: Final = "queue_seconds"
HOLD_S: Final = "hold_seconds"
DEVICE_WAIT_S: Final = "device_wait_seconds"
JOB_S: Final = "job_seconds"
#: Per batch: the time in the handler's verbs.
STAGES_S: Final = ("preprocess_seconds", "inference_seconds", "postprocess_seconds")
#: Per streaming job: the time to its first piece. Per token of a generator: the time since the one
#: before it.
FIRST_PIECE_S: Final = "time_to_first_token_seconds"
BETWEEN_S: Final = "time_per_output_token_seconds"
#: Shown only of models that stream or generate.
GENERATION_S: Final = (FIRST_PIECE_S, BETWEEN_S)
HISTOGRAMS: Final = {
    BATCH_SIZE: BATCH_SIZE_BOUNDS,
    **dict.fromkeys(
        (QUEUE_S, HOLD_S, DEVICE_WAIT_S, JOB_S, *STAGES_S, *GENERATION_S), SECONDS_BOUNDS
    ),
}

#: Counters without labels: of the API, ...
ADMITTED: Final = "admitted"
#: ... of the scripts, ...
DEAD: Final = "dead"
LEASES_LOST: Final = "leases_lost"
#: ... and of the workers.
PADDING: Final = "padding"
STARVED: Final = "starved_seconds"
RENEWED: Final = "leases_renewed"
LOADS: Final = "loads"
LOAD_S: Final = "load_seconds"
LOAD_FAILURES: Final = "load_failures"
UNTOLD: Final = "events_left_out"
PROMPT_TOKENS: Final = "prompt_tokens"
PROMPT_TOKENS_CACHED: Final = "prompt_tokens_cached"
GENERATION_TOKENS: Final = "generation_tokens"
#: Rows that ran, of models whose inputs are tensors.
ROWS: Final = "rows"
GENERATION_COUNTED: Final = (PROMPT_TOKENS, PROMPT_TOKENS_CACHED, GENERATION_TOKENS)
COUNTED: Final = (
    ADMITTED, DEAD, LEASES_LOST, PADDING, STARVED, RENEWED, LOADS, LOAD_S, LOAD_FAILURES, UNTOLD,
    ROWS, *GENERATION_COUNTED,
)  # fmt: skip


class ShadowResult(StrEnum):
    """How the copy of a job for a shadow version has ended.

    Attributes:
        EQUAL: with the same result, or both have failed with the same error.
        DIFFERENT: with another one.
        FAILED: with an error, and the job with a result.
        DROPPED: it did not run: no room, or the job was cancelled or has expired.
        UNKNOWN: a result could not be read any more.
    """

    EQUAL = "equal"
    DIFFERENT = "different"
    FAILED = "failed"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


#: Counters with a label. ADMITTED_VERSION: jobs that ask for a version, by version. REJECTED:
#: refused submits, by error code. ENDED: jobs that ended, by status, or that wait for a retry
#: (RETRIED). LEFT: batches that ran, by the reason for which they left. RESTARTS: restarted model
#: processes, by the reason for which the last one ended.
SHADOW: Final = "shadow"  # shadow:<result> <version>
ADMITTED_VERSION: Final = "admitted_version"
REJECTED: Final = "rejected"
ENDED: Final = "ended"
RETRIED: Final = "retried"
LEFT: Final = "left"
RESTARTS: Final = "restarts"
LABELLED: Final = (ADMITTED_VERSION, REJECTED, ENDED, LEFT, RESTARTS)


def shadow_field(version: str, result: ShadowResult) -> str:
    """Return the field of `hr:stats:<model>` that counts such copies for a shadow version."""
    return f"{SHADOW}:{result} {version}"


#: How the jobs of a batch that were claimed together have waited: their number, and two times in
#: seconds. In the first they were held back for others; in the second the device was busy with
#: others.
Wait = tuple[int, float, float]


def field_of(histogram: str) -> str:
    """Return the hash field of a histogram, which is another one for other bounds."""
    return f"{histogram}@{len(HISTOGRAMS[histogram])}"


class ModelStats:
    """What happened to one model since the last `drain`."""

    def __init__(self) -> None:
        self._deltas: defaultdict[str, float] = defaultdict(float)
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in HISTOGRAMS.items()}
        self._sums = dict.fromkeys(HISTOGRAMS, 0.0)
        self._observed = False

    def count(self, name: str, by: float = 1.0) -> None:
        """Increment a counter of `COUNTED`, or `<name>:<label>` of one of `LABELLED`."""
        self._deltas[name] += by

    def left(self, reason: str) -> None:
        """Count a batch that ran or was lost, by why it left (`batcher.Reason`)."""
        self._deltas[f"{LEFT}:{reason}"] += 1

    def observe_batch(
        self,
        size: int,
        queue_s: Sequence[float],
        waits: Sequence[Wait],
        job_s: Sequence[float],
        stages_s: Sequence[float],
        padding: int = 0,
        starved_s: float = 0.0,
    ) -> None:
        """Add a batch that ran.

        Args:
            queue_s: per job, the seconds from its submit to its claim.
            waits: how its jobs waited from their claim to its start.
            job_s: per job, the seconds from its submit to its outcome.
            stages_s: the handler's seconds by verb: preprocess, inference, postprocess.
            padding: inputs that were added to reach an allowed size.
            starved_s: the seconds for which the device waited for `preprocess`.
        """
        if starved_s:
            self._deltas[STARVED] += starved_s
        if padding:
            self._deltas[PADDING] += padding
        self.observe(BATCH_SIZE, (size,))
        self.observe(QUEUE_S, queue_s)
        self.observe(JOB_S, job_s)
        for jobs, hold_s, device_wait_s in waits:
            self.observe(HOLD_S, (hold_s,), jobs)
            self.observe(DEVICE_WAIT_S, (device_wait_s,), jobs)
        for name, took_s in zip(STAGES_S, stages_s, strict=True):
            self.observe(name, (took_s,))

    def observe(self, name: str, values: Sequence[float], times: int = 1) -> None:
        """Add values to a histogram, each `times` times."""
        counts, bounds = self._counts[name], HISTOGRAMS[name]
        for value in values:
            counts[bisect_left(bounds, value)] += times
        self._sums[name] += times * sum(values)
        self._observed = True

    def observe_tokens(
        self, prompt: int, cached: int, generated: int, counts: Sequence[int], sum_s: float
    ) -> None:
        """Add what a generator has done since its last report.

        Args:
            prompt: the tokens of the prompts of requests that have ended.
            cached: those of them that were in the cache.
            generated: the tokens of their answers.
            counts: how many tokens came after about so long, by `SECONDS_BOUNDS`.
            sum_s: the seconds between all of them.
        """
        tokens = (prompt, cached, generated)
        for name, count in zip(GENERATION_COUNTED, tokens, strict=True):
            if count:
                self._deltas[name] += count
        if any(counts):
            self._counts[BETWEEN_S] = list(map(add, self._counts[BETWEEN_S], counts))
            self._sums[BETWEEN_S] += sum_s
            self._observed = True

    @property
    def empty(self) -> bool:
        """Whether nothing has happened since the last `drain`."""
        return not (self._deltas or self._observed)

    def drain(self) -> list[tuple[str, str]]:
        """Return the increments since the last call, for workers/report.lua."""
        taken = [(name, repr(by)) for name, by in self._deltas.items()]
        self._deltas.clear()
        if not self._observed:
            return taken
        self._observed = False
        for name, counts in self._counts.items():
            if any(counts):
                added = " ".join(map(str, accumulate(counts)))
                taken.append((field_of(name), f"{added} {self._sums[name]!r}"))
                self._counts[name] = [0] * len(counts)
                self._sums[name] = 0.0
        return taken


class HostFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host.

    Attributes:
        cpu_ratio: the recent load of all of them, 0 to 1.
        memory_bytes: its memory; `memory_available_bytes` can be allocated without swapping.
        disk_bytes: the file system of the worker; `disk_available_bytes` is free for it, and
            `disk_used_bytes` is used. The rest is for root.
    """

    name: str
    cpus: int = 0
    cpu_ratio: float = 0.0
    memory_bytes: int = 0
    memory_available_bytes: int = 0
    disk_bytes: int = 0
    disk_available_bytes: int = 0
    disk_used_bytes: int = 0


class DeviceFigures(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU or MIG device. Values that the driver does not report are None.

    Attributes:
        id: its number on the host; the UUID of a MIG device.
        busy_ratio: the part of the last sample period in which a kernel ran, 0 to 1.
        gpu: the number on the host of the GPU, or of the one that the MIG device is part of.
    """

    id: str
    uuid: str = ""
    name: str = ""
    busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    gpu: int | None = None


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that one worker measures.

    Attributes:
        models: the memory of each model's processes in bytes.
        gpu_processes: the GPU memory of each process in bytes, as far as the driver reports it.
    """

    host: HostFigures | None = None
    devices: list[DeviceFigures] = []
    models: dict[str, int] = {}
    gpu_processes: dict[int, int] = {}


#: The state of a model that a worker loads at its first job.
UNLOADED_STATE: Final = "unloaded"
#: The state of a model is the first of these that one of its replicas or workers has. `stopped`
#: counts as no worker.
BEST_FIRST: Final = (
    "ready", "draining", "warming", "loading", UNLOADED_STATE, "restarting", "failed", "stopped",
)  # fmt: skip


class ProcessState(msgspec.Struct, frozen=True, array_like=True):
    """One model process.

    Attributes:
        state: ready, draining, warming, loading, restarting, failed or stopped.
        since_s: since when it has this state, in seconds since 1970.
    """

    pid: int
    state: str
    since_s: float = 0.0


class GenerationState(msgspec.Struct, frozen=True, array_like=True):
    """What the generators of one model do.

    Attributes:
        used_tokens: what they take of the generators' budgets.
        tokens: the budgets.
    """

    requests: int = 0
    used_tokens: int = 0
    tokens: int = 0


class ModelState(msgspec.Struct, frozen=True):
    """One model in one worker.

    Attributes:
        state: ready, draining, warming, loading, restarting, failed or stopped; the best state of
            its replicas.
        replicas: how many model processes it should have.
        ready: how many of them are loaded.
        error: the traceback of a failed load, the reason why lost processes wait, or "".
        backoff_us: first and longest wait before a retry, unless the job has its own.
        version: the version of the model; "" for a pipeline.
        total_replicas: how many all workers together should have; None: each has its own number.
        threads: with how many threads each process computes; 0 if it is not known.
        cpus: the logical CPUs of each pinned process, such as "0-3".
        memory_mib: what one replica took at its last load; 0 if it was not measured.
        variant: which variant of its module runs, in words; "" without the option `optimize`.
        preprocess: where its `preprocess` runs, and why; "" for a generator.
        held: how many jobs the worker has claimed and not settled.
        yields: its handler can send pieces of a result.
        recycled, lost: how many of its processes were replaced by its options, and how many died.
        generation: what its generators do; None if its handler is no generator.
    """

    state: str
    replicas: int = 0
    ready: int = 0
    device: str = ""
    error: str = ""
    node: str = ""
    pids: list[int] = []
    backoff_us: tuple[int, int] = (
        int(RETRY_BACKOFF_S * US_PER_S),
        int(RETRY_BACKOFF_MAX_S * US_PER_S),
    )
    version: str = ""
    total_replicas: int | None = None
    threads: int = 0
    cpus: list[str] = []
    memory_mib: int = 0
    processes: list[ProcessState] = []
    variant: str = ""
    preprocess: str = ""
    held: int = 0
    generation: GenerationState | None = None
    yields: bool = False
    recycled: int = 0
    lost: int = 0


class RegistryProgress(msgspec.Struct, frozen=True):
    """How far a worker is that follows the registry of models.

    Attributes:
        generation: of the registry that it serves, or has begun to serve.
        updating: the models that differ from it yet, or have processes that load.
        failed: `<model>@<version>` -> the traceback of what could not be loaded.
    """

    generation: int = 0
    updating: list[str] = []
    failed: dict[str, str] = {}


class WorkerReport(msgspec.Struct, frozen=True):
    """What one worker reports.

    Attributes:
        versions: of Headrace, Python and packages, by name; empty if it does not report them.
        clock_s: its host's clock at the report, in seconds since 1970; 0 if it does not report it.
        labels: which models it serves (`worker_labels`).
        registry: how far it follows the registry of models; None if it does not.
        unloaded: `<model>@<version>` that it loads at the first job -> why it cannot; "" if it can.
        started_s: when it started, in seconds since 1970; 0 if it does not report it.
        drained: it claims no jobs, as an operator has asked; None: it cannot be asked.
    """

    node: str
    pid: int
    models: dict[str, ModelState]
    figures: Figures
    versions: dict[str, str] = {}
    clock_s: float = 0.0
    labels: list[str] = []
    registry: RegistryProgress | None = None
    capacity: Capacity = Capacity()
    unloaded: dict[str, str] = {}
    started_s: float = 0.0
    drained: bool | None = None


#: The fields of `hr:worker:<owner>` next to the states of the models. No model has such a name.
FIGURES: Final = ":figures"
CLOCK: Final = ":clock"
REGISTRY: Final = ":registry"
UNLOADED: Final = ":unloaded"
DRAINED: Final = ":drained"


class _Own(msgspec.Struct, frozen=True):
    node: str = ""
    pid: int = 0
    versions: dict[str, str] = {}
    labels: list[str] = []
    capacity: Capacity = Capacity()
    started_s: float = 0.0


#: What the other fields hold than those of models.
_TYPES: Final[dict[str, Any]] = {
    "": _Own, FIGURES: Figures, CLOCK: float, REGISTRY: RegistryProgress, UNLOADED: dict[str, str],
    DRAINED: bool,
}  # fmt: skip


def read_report(fields: Mapping[bytes, bytes]) -> WorkerReport:
    """Read `hr:worker:<owner>`. Fields that cannot be read, as of another version, are ignored."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            field = name.decode()
            found[field] = msgspec.json.decode(value, type=_TYPES.get(field, ModelState))
    own = found.pop("", _Own())
    return WorkerReport(
        **msgspec.structs.asdict(own),
        figures=found.pop(FIGURES, Figures()),
        clock_s=found.pop(CLOCK, 0.0),
        registry=found.pop(REGISTRY, None),
        unloaded=found.pop(UNLOADED, {}),
        drained=found.pop(DRAINED, None),
        models=found,
    )
