"""metrics.lua: how the processes of all hosts add up TorchServe's metrics."""

from __future__ import annotations

from typing import Any

import pytest

from extensions.torchserve.config.metrics_config import BUCKETS, MetricSpec, MetricType
from extensions.torchserve.logs.lines import Labels
from extensions.torchserve.metrics import totals as torchserve_totals
from extensions.torchserve.metrics.totals import Series, TorchServeTotals, merged
from extensions.torchserve.redis import keys, script
from tests.harness.clients.script_calls import Queue

COUNTER = MetricSpec("Seen", MetricType.COUNTER, "Count", ())
GAUGE = MetricSpec("Level", MetricType.GAUGE, "Count", ())
SIZES = MetricSpec("Sizes", MetricType.HISTOGRAM, "Megabytes", ())
NO_LABELS: Labels = ()


def write(queue: Queue, *processes: TorchServeTotals) -> list[Any]:
    """Write what these processes have counted; the replies of the script."""
    replies = []
    for one in processes:
        command = one.take()[1]
        assert command is not None
        _, _, count, *arguments = command
        assert count == 0
        replies.append(queue.send(script("metrics").call([], *arguments)))
    return replies


def read(queue: Queue) -> dict[tuple[str, Labels], Series]:
    found: list[Any] = queue.client.zrange(keys.METRICS, 0, -1)
    members = sorted(raw.decode() for raw in found)
    rows: Any = [(one, queue.client.hgetall(keys.metrics(one))) for one in members]
    return {(one.name, one.labels): one for one in merged(rows)}


def host(name: str) -> Labels:
    return (("Hostname", name),)


def test_processes_of_one_host_are_added_and_hosts_are_apart(queue: Queue) -> None:
    one, two, other = TorchServeTotals("h"), TorchServeTotals("h"), TorchServeTotals("i")
    for process, value in ((one, 0.3), (two, 30.0), (other, 1.0)):
        for spec in (COUNTER, GAUGE, SIZES):
            process.add("m", spec, NO_LABELS, value)
    assert write(queue, one, two, other) == [0, 0, 0]
    one.add("m", COUNTER, NO_LABELS, 1.0)
    write(queue, one)
    found = read(queue)
    assert found["Seen", host("h")].values == (31.3,)
    assert found["Seen", host("i")].values == (1.0,)
    assert found["Level", host("h")].values == (30.0,)
    *counts, total = found["Sizes", host("h")].values
    assert counts == [*(float(bound >= 0.3) for bound in BUCKETS), 2.0]
    assert total == 30.3


def test_all_of_it_expires(queue: Queue) -> None:
    totals = TorchServeTotals("h")
    totals.add("m", COUNTER, NO_LABELS, 1.0)
    write(queue, totals)
    for name in (keys.METRICS, keys.metrics("h m")):
        assert 0 < queue.client.ttl(name) <= keys.METRICS_TTL_S


def test_the_limit_holds_for_all_processes_of_a_host(queue: Queue) -> None:
    one, two = TorchServeTotals("h", series_max=2), TorchServeTotals("h", series_max=2)
    for process, kinds in ((one, "ab"), (two, "bc")):
        for kind in kinds:
            process.add("m", COUNTER, (("Kind", kind),), 1.0)
    assert write(queue, one, two) == [0, 1]
    counted = {labels[0]: one.values for (_, labels), one in read(queue).items()}
    assert counted == {("Kind", "a"): (1.0,), ("Kind", "b"): (2.0,)}


@pytest.mark.leaves_keys
def test_a_key_of_another_type_hinders_no_other_model(queue: Queue) -> None:
    queue.client.set(keys.metrics("h m"), "theirs", ex=60)
    totals = TorchServeTotals("h")
    for model in ("m", "other"):
        totals.add(model, COUNTER, NO_LABELS, 1.0)
    write(queue, totals)
    assert queue.client.zrange(keys.METRICS, 0, -1) == [b"h other"]
    assert queue.client.get(keys.metrics("h m")) == b"theirs"


def test_the_metrics_of_served_models_live_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = TorchServeTotals("h")
    for model in ("m", "gone"):
        totals.add(model, COUNTER, NO_LABELS, 1.0)
    write(queue, totals)
    for model in ("m", "gone"):
        queue.client.expire(keys.metrics(f"h {model}"), 100)
    assert totals.take({"m"})[1] is None, "an hour has not passed"
    monkeypatch.setattr(torchserve_totals, "KEEP_S", 0.0)
    command = totals.take({"m"})[1]
    assert command is not None
    queue.execute(*command)
    assert queue.client.ttl(keys.metrics("h m")) > 100
    assert queue.client.ttl(keys.metrics("h gone")) <= 100
    assert read(queue)["Seen", host("h")].values == (1.0,)
