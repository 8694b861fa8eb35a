"""From rows to a `Load`: windows, the steady part, and its figures. Pure code."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from extensions.tuning.bench import statistics
from extensions.tuning.bench.load.plan import Sent
from extensions.tuning.bench.load.rows import NEVER, NOT_SENT, Row
from extensions.tuning.bench.load.scenarios import Scenario
from extensions.tuning.bench.load.targets import STAGES
from extensions.tuning.bench.measurement import Load, Objective, Spread, Verdict, Window

WINDOW_S: Final = 1.0
WINDOWS_MIN: Final = 8
WINDOWS_MAX: Final = 60
#: The generator spoils a load if its delay adds more than both of these to a figure. It does too if
#: only its delay made the load miss its objective. With an objective LAG_SHARE of its latency is
#: allowed.
LAG_MS: Final = 1.0
LAG_SHARE: Final = 0.1
#: A generator that uses so much of a core delays what it measures.
BUSY: Final = 0.9
_REMEDY: Final = "use more --processes, or another machine for the generator"


def summarise(
    scenario: Scenario,
    sent: Sent,
    *,
    objective: Objective | None = None,
    warm_up_s: float | None = None,
    started_at: float = 0.0,
) -> Load:
    """Return what came of a load.

    Args:
        warm_up_s: what to leave out at the start; None finds it.
        started_at: seconds since 1970.
    """
    rows = sorted(sent.rows, key=lambda row: row.due_s)
    length_s = sent.length_s
    if scenario.kind == "offline":
        # All requests are due at once, so the load is as long as it takes to answer them.
        length_s = max((row.answered_s for row in rows), default=0.0)
    windows, start_s, steady = _in_windows(rows, scenario, length_s, warm_up_s)
    counted = [row for row in rows if start_s <= row.due_s < length_s]
    results = [row for row in counted if not row.error]
    latencies = [row.latency_ms for row in results]
    low, high = _rate_interval(windows)
    load = Load(
        scenario=scenario.kind,
        offered_rate=_offered(scenario, rows, length_s),
        concurrency=scenario.concurrency,
        started_at=datetime.fromtimestamp(started_at, UTC).isoformat(timespec="milliseconds"),
        duration_s=length_s - start_s,
        warm_up_s=start_s,
        requests=len(counted),
        succeeded=len(results),
        errors=dict(Counter(row.error for row in counted if row.error).most_common()),
        rate=_rate(rows, start_s, length_s),
        rate_low=low,
        rate_high=high,
        latency=statistics.spread(latencies),
        latency_cdf=statistics.cdf(latencies),
        stages=_stages(results),
        batch_sizes=dict(sorted(Counter(r.batch_size for r in results if r.batch_size).items())),
        lag=statistics.spread(_lags_ms(scenario, sent, counted)),
        windows=windows,
        steady=steady,
        cut=sent.cut,
        verdict=_verdict(counted, objective, sent),
    )
    refused = _why_refused(load, scenario, sent, counted, objective)
    return msgspec.structs.replace(load, refused=refused)


def _in_windows(
    rows: Sequence[Row], scenario: Scenario, length_s: float, warm_up_s: float | None
) -> tuple[list[Window], float, bool]:
    """Return the windows of a load, when the warm-up has ended, and whether the rest is steady."""
    windows = _windows(rows, max(length_s, 1e-3))
    start_s, steady = _steady_part(windows, scenario, warm_up_s)
    marked = [
        msgspec.structs.replace(window, steady=window.start_s >= start_s - 1e-9)
        for window in windows
    ]
    return marked, start_s, steady


def _rate(rows: Sequence[Row], start_s: float, end_s: float) -> float:
    """Return the results a second that came within a part of the load."""
    answered = sum(not row.error and start_s <= row.answered_s <= end_s for row in rows)
    return answered / (end_s - start_s) if end_s > start_s else 0.0


def _rate_interval(windows: Sequence[Window]) -> tuple[float, float]:
    """Return the 95 % interval of the rate within the steady windows."""
    steady = [window for window in windows if window.steady]
    counts = [round(window.rate * window.length_s) for window in steady]
    return statistics.rate_interval(counts, steady[0].length_s if steady else 1.0)


def _lags_ms(scenario: Scenario, sent: Sent, counted: Sequence[Row]) -> list[float]:
    """Return the delays of the generator: of its timer, if its requests have no times."""
    if scenario.concurrency:
        return [tick_s * 1000 for tick_s in sent.ticks_s]
    return [(row.sent_s - row.due_s) * 1000 for row in counted]


def _windows(rows: Sequence[Row], length_s: float) -> list[Window]:
    """Return the load in windows of equal length; `rows` are in the order of their times."""
    count = min(WINDOWS_MAX, max(WINDOWS_MIN, math.floor(length_s / WINDOW_S)))
    each_s = length_s / count
    due = [row.due_s for row in rows]
    ended = sorted(_end_of(row) for row in rows)
    results = sorted(row.answered_s for row in rows if not row.error)
    windows = []
    for index in range(count):
        start_s, end_s = index * each_s, (index + 1) * each_s
        inside = rows[bisect_right(due, start_s) if index else 0 : bisect_right(due, end_s)]
        latencies = sorted(row.latency_ms for row in inside if not row.error)
        answers = bisect_right(results, end_s) - bisect_right(results, start_s)
        windows.append(
            Window(
                start_s=start_s,
                length_s=each_s,
                rate=answers / each_s,
                p50_ms=statistics.percentile(latencies, 0.5),
                p99_ms=statistics.percentile(latencies, 0.99),
                waiting=bisect_right(due, end_s) - bisect_right(ended, end_s),
                steady=False,
            )
        )
    return windows


def _end_of(row: Row) -> float:
    # A request without an answer waits until after the load.
    return (
        math.inf
        if row.answered_s == NEVER and row.error == "unanswered"
        else max(row.answered_s, row.sent_s)
    )


def _steady_part(
    windows: Sequence[Window], scenario: Scenario, warm_up_s: float | None
) -> tuple[float, bool]:
    """Return when the warm-up has ended, and whether the rest is steady."""
    if scenario.kind == "offline":
        return 0.0, True
    each_s = windows[0].length_s
    if warm_up_s is None:
        with_results = [index for index, window in enumerate(windows) if window.p50_ms]
        skipped = statistics.warm_up_windows([windows[index].p50_ms for index in with_results])
        first = with_results[skipped] if skipped else 0
    else:
        first = min(len(windows) - 1, math.ceil(warm_up_s / each_s - 1e-9))
    rest = windows[first:]
    latencies = [window.p50_ms for window in rest if window.p50_ms]
    steady = not statistics.drifts(latencies)
    if not scenario.concurrency:
        rate = scenario.rate or (len(rest) and sum(window.rate for window in rest) / len(rest))
        steady = steady and not statistics.grows([window.waiting for window in rest], rate)
    return first * each_s, steady


def _offered(scenario: Scenario, rows: Sequence[Row], length_s: float) -> float | None:
    if scenario.kind == "server":
        return scenario.rate
    if scenario.kind == "replay" and length_s > 0:
        return len(rows) / length_s
    return None


def _stages(results: Sequence[Row]) -> dict[str, Spread]:
    times = [row.stage_times() for row in results if row.stages]
    if not times:
        return {}
    return {stage: statistics.spread([one[stage] for one in times]) for stage in STAGES}


def _verdict(counted: Sequence[Row], objective: Objective | None, sent: Sent) -> Verdict | None:
    if objective is None:
        return None
    late = sum(bool(row.error) or row.latency_ms > objective.latency_ms for row in counted)
    found = statistics.verdict(len(counted), late, objective)
    in_time = sum(
        not row.error and (row.answered_s - row.sent_s) * 1000 <= objective.latency_ms
        for row in counted
    )
    if not found.met and len(counted) - in_time <= found.allowed:
        found = msgspec.structs.replace(found, fair=False)
    if found.met and sent.cut:
        # The late ones were in a part that was left out as warm-up.
        text = f"{found.text}, but the load was stopped early for too many late requests"
        return msgspec.structs.replace(found, met=False, text=text)
    if _unsent(sent):
        text = f"{found.text}, but not all requests were sent" if found.met else found.text
        return msgspec.structs.replace(found, met=False, text=text, fair=False)
    return found


def _unsent(sent: Sent) -> bool:
    """Return whether the generator did not send all requests that were due."""
    return sent.overrun or any(row.error == NOT_SENT for row in sent.rows)


def _why_refused(
    load: Load, scenario: Scenario, sent: Sent, counted: Sequence[Row], objective: Objective | None
) -> str:
    """Return why the figures of a load do not count; "" if they do."""
    if _unsent(sent):
        number = sum(row.error != NOT_SENT for row in sent.rows)
        return (
            f"the generator sent only {number:,} of the requests that were due; send fewer, or "
            f"{_REMEDY}"
        )
    if not load.requests:
        return "no request was due in the steady part; make the duration longer"
    if not load.succeeded:
        return "no request had a result"
    if not load.rate and load.verdict is None:
        return "no result came before the load's end; make the duration longer"
    return _why_spoilt(load, scenario, sent, counted, objective)


def _why_spoilt(
    load: Load, scenario: Scenario, sent: Sent, counted: Sequence[Row], objective: Objective | None
) -> str:
    """Return how the generator's own delay has spoilt the figures of a load; "" if it did not."""
    share = sent.cpu_s / sent.length_s if sent.length_s > 0 else 0.0
    if scenario.concurrency:
        if share > BUSY:
            return f"the generator used {share:.0%} of a core, so it was the limit; {_REMEDY}"
        if _matters(load.lag.mean, load.latency.mean - load.lag.mean):
            return f"the generator was late by {load.lag.mean:.1f} ms on average; {_REMEDY}"
        return ""
    # What the latencies would be without the generator's delay.
    from_sent = [(row.answered_s - row.sent_s) * 1000 for row in counted if not row.error]
    without = statistics.spread(from_sent)
    least_ms = LAG_SHARE * objective.latency_ms if objective is not None else 0.0
    for name in ("p50", "p99"):
        added = getattr(load.latency, name) - getattr(without, name)
        if _matters(added, getattr(without, name), least_ms):
            return f"the generator's delay added {added:.1f} ms to the {name}; {_REMEDY}"
    if load.verdict is not None and not load.verdict.fair:
        return f"only the generator's delay made requests late; {_REMEDY}"
    return ""


def _matters(added_ms: float, latency_ms: float, least_ms: float = 0.0) -> bool:
    return added_ms > max(LAG_MS, LAG_SHARE * latency_ms, least_ms)
