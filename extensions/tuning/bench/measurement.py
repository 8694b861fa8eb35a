"""The document of a measurement: what was sent, what came back, and where.

It is written as JSON. The report, the comparison, the sweep and `headrace tune` read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headrace.errors import ConfigError

#: The format of the document; a reader refuses a newer one.
FORMAT: Final = 1

Protocol = Literal["headrace", "torchserve", "triton"]
ScenarioKind = Literal["server", "closed", "single", "offline", "replay"]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What a user is promised, such as `p99=100ms`.

    Attributes:
        percentile: the share of requests that must be in time, in percent: 99 for p99.
        latency_ms: the longest time in which a request must be answered.
        confidence: how sure a verdict must be, from 0 to 1.
    """

    percentile: float
    latency_ms: float
    confidence: float = 0.99


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a load met the objective, by the binomial rule.

    Attributes:
        requests: how many requests counted.
        late: how many of them were late or failed.
        allowed: the most late requests with which so many requests confirm the objective; -1 if
            they are too few for any.
        needed: how many requests confirm it with so many late ones.
        fair: the generator's own delay did not decide it.
        refuted: more requests were late than the objective allows. If it is neither met nor
            refuted, the load was too short for a verdict.
    """

    met: bool
    requests: int
    late: int
    allowed: int
    needed: int
    text: str
    fair: bool = True
    refuted: bool = True

    @property
    def word(self) -> str:
        """Return the verdict in a word or two."""
        return "met" if self.met else ("missed" if self.refuted else "not confirmed")


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a time in milliseconds was spread over requests."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a process, or a group of processes, used during the steady part.

    Attributes:
        memory_mb: the most memory (unique set size where the system has it, else resident) in MiB.
        memory_total_mb: of the part `device`: the memory of all NVIDIA devices in MiB; else 0.
        busy: of the part `device`: the share of the time, 0 to 1, in which a kernel ran, the mean
            of the devices; else 0.
    """

    cpu_s: float
    memory_mb: float
    processes: int = 1
    memory_total_mb: float = 0.0
    busy: float = 0.0


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a load, about a second or more.

    Attributes:
        start_s: its start, from the start of the load.
        rate: answered requests a second.
        p50_ms, p99_ms: latency of the requests that were due in it.
        waiting: requests without an answer at its end.
    """

    start_s: float
    length_s: float
    rate: float
    p50_ms: float
    p99_ms: float
    waiting: int
    steady: bool


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load and what came of it. Figures are those of the steady part.

    Attributes:
        offered_rate: requests a second that were due; None unless the scenario has a rate.
        concurrency: how many requests were under way at most; 0 for any number.
        started_at: when it started, ISO 8601.
        duration_s: the length of the steady part.
        warm_up_s: what was left out before it.
        succeeded: how many of them were answered with a result.
        errors: the others, by status or kind of error.
        rate: results a second.
        rate_low, rate_high: the 95 % interval of `rate`.
        latency: from the time a request was due to its answer, of the requests with a result.
        latency_cdf: points (milliseconds, share of requests) for a plot, ascending.
        stages: how the time was spent, by stage, in order. The stages are queued, hold,
            device_wait, preprocess, inference, postprocess, and `other` for the way to the server
            and back.
        batch_sizes: how many requests ran in a batch of each size.
        lag: how late the generator sent requests.
        usage: CPU and memory by part: client, api, redis, worker, model; only where they run here.
        steady: a steady part was found: latency does not drift, and no queue grows.
        cut: it was stopped early, because it could no longer meet the objective.
        refused: why the figures do not count, such as a generator that was too slow; "" if they do.
    """

    scenario: ScenarioKind
    started_at: str
    duration_s: float
    warm_up_s: float
    requests: int
    succeeded: int
    rate: float
    rate_low: float
    rate_high: float
    latency: Spread
    lag: Spread
    offered_rate: float | None = None
    concurrency: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict)
    latency_cdf: list[tuple[float, float]] = msgspec.field(default_factory=list)
    stages: dict[str, Spread] = msgspec.field(default_factory=dict)
    batch_sizes: dict[int, int] = msgspec.field(default_factory=dict)
    usage: dict[str, Usage] = msgspec.field(default_factory=dict)
    windows: list[Window] = msgspec.field(default_factory=list)
    steady: bool = True
    cut: bool = False
    verdict: Verdict | None = None
    refused: str = ""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate at which the objective is met.

    Attributes:
        rate: requests a second.
        low, high: the highest rate that met the objective, and the lowest that did not; None if
            every rate met it.
        generator_limited: the search ended where the generator was too slow, so that the server
            may be able to do more.
    """

    rate: float
    low: float
    high: float | None
    generator_limited: bool = False


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `headrace bench`.

    Attributes:
        version: the version that answered; "" if the server does not name one.
        protocol, url: how and where it was reached, without secrets.
        options: the model's options in force, if the server shows them.
        environment: what it ran on: CPU, cores, memory, governor, load average before and after,
            versions, devices, commit, digest of the options.
        cost_per_1000: the cost of 1,000 results at the best rate that counts; None without a price.
        interrupted: it was ended before all loads were sent.
    """

    name: str
    model: str
    url: str
    started_at: str
    loads: list[Load]
    format: int = FORMAT
    version: str = ""
    protocol: Protocol = "headrace"
    input: str = ""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    environment: dict[str, Any] = msgspec.field(default_factory=dict)
    objective: Objective | None = None
    peak: Peak | None = None
    price_per_hour: float | None = None
    cost_per_1000: float | None = None
    currency: str = ""
    interrupted: bool = False


def with_load_of(first: Measurement, later: Measurement) -> Measurement:
    """Return a later measurement of a series with the load of the host before the first one.

    The load before the later one is that of the series itself.
    """
    load = {"load_before": first.environment.get("load_before")}
    return msgspec.structs.replace(later, environment={**later.environment, **load})


class _Format(msgspec.Struct):
    format: int = FORMAT


def read_measurement(path: Path) -> Measurement:
    """Read the JSON file of a measurement.

    Raises:
        ConfigError: there is no such file, or it is not a measurement of a known format.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="give a file of --json") from error
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found <= FORMAT:
            return msgspec.json.decode(text, type=Measurement)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not a measurement: {error}",
            hint="give a file that `headrace bench --json FILE` has written",
        ) from error
    raise ConfigError(
        f"{path} has the format {found}, and this version knows {FORMAT} at most",
        hint="use the Headrace that has written it, or a newer one",
    )
