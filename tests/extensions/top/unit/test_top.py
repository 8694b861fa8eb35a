"""`headrace top`: rates out of two samples, and lines that fit any terminal."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from api.observability.metric_families import FAMILIES
from extensions.top.cli.layout import (
    DEVICES,
    HOSTS,
    MODELS,
    SORTS,
    ViewOptions,
    bar,
    lines,
    short_duration,
    short_rate,
)
from extensions.top.cli.sample import SERIES, Labels, Sample, parse, quantile
from extensions.top.cli.screen import GAP_S, History, Poller, PollResult, Screen, pressed
from extensions.top.cli.view import View, view_of
from headrace import Client
from headrace.errors import ServerUnreachable

GIB = 1 << 30
HEADS = [column.head for column in MODELS if column.is_shown(200, extended=False)]


def sample(at_s: float, *models: str, scale: float = 0.0, **given: float) -> Sample:
    """A deployment in which everything grows with `scale`; `given` are series of no label."""
    rows = ['headrace_build_info{version="1.2.3"} 1', "headrace_broker_up 1", "headrace_workers 2"]
    for i, model in enumerate(models):
        for step, count in (("0", 10 + i), ("3", 0), ("6", 0), ("9", 5)):
            label = f'model="{model}",priority="{step}",version="1.0"'
            rows.append(f"headrace_queue_depth{{{label}}} {count - scale}")
            rows.append(f"headrace_queue_oldest_age_seconds{{{label}}} {count / 2}")
        label = f'model="{model}"'
        rows += [
            f"headrace_jobs_in_flight{{{label}}} 3",
            f'headrace_jobs_ended_total{{{label},status="succeeded"}} {1000 + 100 * scale}',
            f'headrace_jobs_ended_total{{{label},status="failed"}} {10 * scale}',
            f"headrace_batch_size_sum{{{label}}} {110 * scale}",
            f"headrace_batch_size_count{{{label}}} {10 * scale}",
            f"headrace_model_ready_replicas{{{label}}} 1",
            f"headrace_model_replicas{{{label}}} 2",
            f'headrace_model_memory_bytes{{{label},worker="gpu0@a"}} {GIB}',
        ]
        for le, count in (("0.1", 50), ("1", 99), ("+Inf", 100)):
            rows.append(f'headrace_job_seconds_bucket{{le="{le}",{label}}} {count * scale}')
    rows += [
        'headrace_api_requests_total{code="200",method="GET",route="/live"} ' + str(20 * scale),
        'headrace_api_requests_total{code="503",method="GET",route="/live"} ' + str(2 * scale),
        *(f"headrace_{name} {value}" for name, value in given.items()),
    ]
    for host in ("a", "b"):
        rows += [
            f'headrace_host_cpus{{host="{host}"}} 64',
            f'headrace_host_cpu_ratio{{host="{host}"}} 0.5',
            f'headrace_host_memory_bytes{{host="{host}"}} {512 * GIB}',
            f'headrace_host_memory_available_bytes{{host="{host}"}} {128 * GIB}',
            f'headrace_host_disk_bytes{{host="{host}"}} {1000 * GIB}',
            f'headrace_host_disk_available_bytes{{host="{host}"}} {30 * GIB}',
        ]
        for gpu in ("0", "1"):
            label = f'device="{gpu}",host="{host}"'
            rows += [
                f'headrace_device_info{{{label},name="NVIDIA H200",uuid="GPU-{host}{gpu}"}} 1',
                f"headrace_device_utilization_ratio{{{label}}} 0.97",
                f"headrace_device_memory_bytes{{{label}}} {141 * GIB}",
                f"headrace_device_memory_used_bytes{{{label}}} {70 * GIB}",
                f"headrace_device_temperature_celsius{{{label}}} 61",
                f"headrace_device_power_watts{{{label}}} 540",
            ]
    return Sample(at_s, parse("\n".join(rows)), dict.fromkeys(models, "ready"))


def shown(*models: str, **given: float) -> View:
    return view_of(sample(12.0, *models, scale=2, **given), sample(2.0, *models))


def texts(view: View, how: ViewOptions) -> list[str]:
    return [line.plain for line in lines(view, how)]


#: Made once: its text has thousands of lines.
MANY = shown(*(f"m{i}" for i in range(60)), redis_memory_used_bytes=5e9)


def test_every_series_that_is_read_is_a_metric_with_these_labels() -> None:
    known: dict[str, tuple[str, ...]] = {}
    for family in FAMILIES:
        known[family.shown] = family.labels
        if family.kind == "histogram":
            known[f"{family.name}_bucket"] = (*family.labels, "le")
            known |= {f"{family.name}_{part}": family.labels for part in ("sum", "count")}
    for name, labels in SERIES.items():
        assert set(labels) <= set(known[name]), name


def test_the_format_is_read_with_its_escapes_and_what_is_no_line_is_left_out() -> None:
    text = (
        "# HELP headrace_workers Workers.\nheadrace_workers 2\nheadrace_unheard_of 3\n"
        'headrace_dead_letters{model="a \\"b\\" \\\\ c\\nd"} 1e3\n'
        'headrace_dead_letters{model="broken"} many\nheadrace_queue_paused{model=\n'
    )
    assert parse(text) == {
        "headrace_workers": {(): 2.0},
        "headrace_dead_letters": {('a "b" \\ c\nd',): 1000.0},
    }


def test_rates_are_those_between_two_samples() -> None:
    (row,) = shown("m").models
    # 220 ended in 10 s; of three that waited less at each of four steps, each came and went.
    assert (row.out_s, row.failed_s, row.batch) == (22.0, 2.0, 11.0)
    assert row.in_s == pytest.approx(22.0 - 0.8)
    assert row.p50_s == pytest.approx(0.1)
    assert row.p99_s == pytest.approx(1.0)
    assert row.eta_s == pytest.approx(row.waiting / 0.8)
    assert (row.leased, row.ready, row.replicas, row.memory) == (3, 1, 2, GIB)
    view = shown("m")
    assert view.requests_s == pytest.approx(4.4)
    assert view.errors_s == pytest.approx(0.4)


def test_without_a_second_sample_no_rate_is_made_up() -> None:
    view = view_of(sample(1.0, "m", scale=3), None)
    (row,) = view.models
    assert (row.in_s, row.out_s, row.p99_s, row.batch, row.eta_s) == (None,) * 5
    assert view.requests_s is None


def test_a_counter_that_was_set_back_counts_from_nothing() -> None:
    before, after = sample(0.0, "m", scale=9), sample(10.0, "m", scale=1)
    (row,) = view_of(after, before).models
    assert row.out_s == pytest.approx((1100 + 10) / 10)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 2.0), (0.99, 4.0)]
)
def test_a_percentile_lies_on_a_line_within_its_bucket(share: float, expected: float) -> None:
    buckets = [(1.0, 50.0), (3.0, 100.0), (math.inf, 100.0)]
    if share == 0.99:
        buckets = [(1.0, 10.0), (4.0, 20.0), (math.inf, 100.0)]  # beyond the last bound: that
    assert quantile(buckets, share) == pytest.approx(expected)
    assert quantile([(1.0, 0.0), (math.inf, 0.0)], share) is None


def test_at_80_columns_the_first_ranks_fit_and_at_200_all_do() -> None:
    view = shown("digits", "resnet", "echo")
    small = texts(view, ViewOptions(80, 24))
    assert len(small) <= 24
    assert "leased 9" in small[1]
    (head,) = [line for line in small if line.startswith("MODEL ")]
    for name in ("MODEL", "STATE", "WAIT", "OLDEST", "LEASED", "IN/S", "OUT/S", "P99", "FAIL/S"):
        assert name in head.split()
    assert any(line.startswith("a     0") for line in small), small
    wide = texts(view, ViewOptions(200, 50))
    (head,) = [line for line in wide if line.startswith("MODEL ")]
    assert [name for name in HEADS if name not in head] == []
    # Devices, hosts and processes stand beside each other there.
    assert any("POWER" in line and "CPUS" in line for line in wide)
    assert any("gpu0@a  digits  1.0 GiB" in line for line in wide)
    assert max(map(len, wide)) > 160


@settings(max_examples=40)
@given(
    width=st.integers(1, 240),
    height=st.integers(1, 70),
    count=st.integers(0, 60),
    offset=st.integers(0, 70),
    name=st.text(min_size=1, max_size=64),
    sort=st.sampled_from(SORTS),
)
def test_no_line_is_wider_than_the_terminal_and_none_too_many(
    width: int, height: int, count: int, offset: int, name: str, sort: str
) -> None:
    view = shown(*(f"m{i}" for i in range(count)), redis_memory_used_bytes=5e9)
    view = replace(
        view, models=[replace(row, name=f"{name}{i}") for i, row in enumerate(view.models)]
    )
    how = ViewOptions(width, height, sort=sort, offset=offset, note="no answer: " + name, bad=True)
    drawn = lines(view, how)
    assert len(drawn) <= height
    assert all(line.cell_len <= width for line in drawn), [line.plain for line in drawn]
    assert all(character.isprintable() for line in drawn for character in line.plain)


def test_a_long_list_is_scrolled_and_says_where_it_is() -> None:
    names = [f"model-{i:02d}" for i in range(50)]
    first = texts(shown(*names), ViewOptions(80, 24))
    (place,) = [line for line in first if re.match(r"\d+-\d+ of 50", line)]
    count = int(place.split(" ")[0].split("-")[1])
    assert [line.split()[0] for line in first if line.startswith("model-")] == names[:count]
    last = texts(shown(*names), ViewOptions(80, 24, offset=1000))
    assert [line.split()[0] for line in last if line.startswith("model-")] == names[-count:]


def test_labels_of_workers_are_shown_where_any_worker_has_some() -> None:
    plain = sample(2.0, "m")
    assert not any("LABELS" in line for line in texts(view_of(plain, None), ViewOptions(width=140)))
    info: dict[Labels, float] = {
        ("gpu0@a", "gpu=a100,zone=b"): 1.0,
        ("gpu1@b", "gpu=h200"): 1.0,
        ("cpu@c", ""): 1.0,
    }
    now = Sample(2.0, {**plain.series, "headrace_worker_info": info}, plain.states)
    for width in (80, 140):
        rows = [line.split() for line in texts(view_of(now, None), ViewOptions(width=width))]
        assert ["WORKER", "MODEL", "MEMORY", "LABELS"] in [row[-4:] for row in rows]
        assert ["gpu0@a", "m", "1.0", "GiB", "gpu=a100,zone=b"] in [row[-5:] for row in rows]
        assert ["gpu1@b", "gpu=h200"] in [row[-2:] for row in rows]
    narrow = texts(view_of(now, None), ViewOptions(width=60))
    assert not any("LABELS" in line for line in narrow)


def test_tokens_are_shown_where_a_model_counts_some() -> None:
    def of(at_s: float, **tokens: float) -> Sample:
        plain = sample(at_s, "digits", "writer")
        more: dict[str, dict[Labels, float]] = {
            f"headrace_{name}": {("writer",): value} for name, value in tokens.items()
        }
        return Sample(at_s, {**plain.series, **more}, plain.states)

    counters = {"prompt_tokens_total": 50.0, "generation_tokens_total": 100.0}
    grown = {"prompt_tokens_total": 70.0, "generation_tokens_total": 12_100.0}
    plain = view_of(of(12.0, queue_tokens=0.0), of(2.0))
    assert not any("TOK" in line or "tokens" in line for line in texts(plain, ViewOptions(200)))
    view = view_of(of(12.0, queue_tokens=34_500.0, **grown), of(2.0, **counters))
    for width, columns in ((80, ["OUT/S", "TOK", "OUT", "P99"]), (60, ["OUT/S"])):
        drawn = texts(view, ViewOptions(width, 24))
        assert "tokens 34.5k   tokens in 2.0/s   tokens out 1,200/s" in drawn[2]
        (words,) = [line.split() for line in drawn if line.startswith("MODEL ")]
        assert words[words.index("OUT/S") :] == columns
        assert len(drawn) <= 24
    wide = texts(view, ViewOptions(120))
    (head,) = [line for line in wide if line.startswith("MODEL ")]
    (digits,) = [line for line in wide if line.startswith("digits ")]
    (writer,) = [line for line in wide if line.startswith("writer ")]
    begin, end = head.index("TOKENS"), head.index("TOK OUT") + len("TOK OUT")
    assert writer[begin:end].split() == ["34.5k", "2.0", "1,200"]
    assert not digits[begin:end].strip()
    assert "FAIL/S" in head
    waiting = view_of(of(12.0, queue_tokens=7.0), None)
    (head, row) = [
        line for line in texts(waiting, ViewOptions(120)) if line[:6] in ("MODEL ", "writer")
    ]
    assert row[head.index("TOKENS") :].split()[0] == "7", "a static model counts them too"


def test_models_are_sorted_by_a_column_and_the_column_says_so() -> None:
    view = shown("a", "b", "c")  # each with one more that waits
    down = texts(view, ViewOptions(80, 24, sort="WAIT"))
    assert [line[0] for line in down if re.match(r"[abc] +ready", line)] == ["c", "b", "a"]
    assert any("WAITv" in line for line in down)
    up = texts(view, ViewOptions(80, 24, sort="WAIT", reverse=True))
    assert [line[0] for line in up if re.match(r"[abc] +ready", line)] == ["a", "b", "c"]


def test_what_is_wrong_is_said() -> None:
    view = shown("a", redis_memory_used_bytes=3 * GIB, redis_memory_max_bytes=4 * GIB)
    assert "Redis 3.0 GiB of 4.0 GiB" in texts(view, ViewOptions(80, 24))[2]
    paused = replace(view, models=[replace(view.models[0], paused=True)], broker=False)
    drawn = texts(paused, ViewOptions(80, 24))
    assert "Redis does not answer" in drawn[2]
    assert any(re.match(r"a +paused", line) for line in drawn)
    bare = view_of(Sample(0.0, parse("headrace_broker_up 0\n")), None)
    assert len(texts(bare, ViewOptions(80, 24))) <= 24


def test_a_share_is_a_bar() -> None:
    assert bar(0.5).plain == "█████░░░░░  50%"
    assert bar(None).plain == ""
    assert (bar(0.97).style, bar(0.97, warn=False).style) == ("bold red", "green")
    assert cell_len(bar(7.0).plain) == cell_len(bar(-1.0).plain)


def test_rates_are_those_of_the_last_seconds() -> None:
    history = History(5.0)
    at = [history.add(sample(float(t), "m", scale=float(t * t))) for t in range(9)]
    # From second 3 to 8, as the sample of second 3 is the newest that is 5 s old.
    assert at[8].models[0].out_s == pytest.approx(110 * (64 - 9) / 5)
    assert history.add(sample(8.0 + 2 * GAP_S, "m", scale=99)).models[0].out_s is None
    # What was told without Redis tells nothing to count from.
    away = History()
    away.add(Sample(0.0, parse("headrace_broker_up 0\n")))
    assert away.add(sample(2.0, "m")).models[0].out_s is None


class Watching(Poller):
    """One that has seen what it is told, and looks at nothing."""

    def __init__(self, seen: PollResult) -> None:
        self.result = seen


def screen_of(seen: PollResult, width: int = 80, height: int = 24) -> Screen:
    console = Console(width=width, height=height, file=StringIO())
    return Screen(Watching(seen), console, "http://server:8080")


def drawn(screen: Screen) -> list[str]:
    return [getattr(line, "plain", "") for line in screen.drawn().renderables]


def test_keys_change_what_is_seen() -> None:
    screen = screen_of(PollResult(shown("a", "b")))
    first = drawn(screen)
    assert len(first) == 24
    assert "by file" in first[-1]
    assert screen.key("s")
    assert "by wait" in drawn(screen)[-1]
    for _ in SORTS[1:]:
        screen.key("s")
    assert "by file" in drawn(screen)[-1]
    screen.key("p")
    screen._poller.result = PollResult(shown("other"))
    assert any(line.startswith("a ") for line in drawn(screen))
    assert "paused" in drawn(screen)[0]
    screen.key("p")
    assert any(line.startswith("other ") for line in drawn(screen))
    assert screen.key("x")
    assert not screen.key("q")


def test_a_look_that_hangs_counts_into_how_long_there_was_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0

    class Hanging:
        session = None

        def _run(self, _: object) -> None:
            nonlocal now
            now += 10.0
            raise ServerUnreachable("Headrace does not answer")

    monkeypatch.setattr("extensions.top.cli.screen.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr("extensions.top.cli.screen.read", lambda _: None)
    watch = Poller(cast(Client, Hanging()), 2.0)
    for _ in range(2):
        watch.result = watch._poll()
    assert watch.result.since_s == 100.0


def test_a_server_that_is_away_is_said_above_what_was_seen_last() -> None:
    away = ServerUnreachable("Headrace does not answer at http://server:8080: refused")
    screen = screen_of(PollResult(None, away, 0.0))
    assert "does not answer at http://server:8080" in " ".join(drawn(screen))
    known = screen_of(PollResult(shown("a"), away, 0.0))
    assert "no answer for" in drawn(known)[0]
    assert any(line.startswith("a ") for line in drawn(known))


def test_arrows_are_keys_of_three_bytes_and_a_closed_terminal_quits() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"s\x1b[B\x1bOA\x1b")
    assert pressed(ours) == ["s", "\x1b[B", "\x1bOA", "\x1b"]
    os.close(theirs)
    assert pressed(ours) == ["q"]
    os.close(ours)


def test_other_tables_have_their_columns_too() -> None:
    heads: Mapping[str, list[str]] = {
        "host": [column.head for column in HOSTS], "gpu": [column.head for column in DEVICES],
    }  # fmt: skip
    text = "\n".join(texts(shown("a"), ViewOptions(200, 60)))
    for names in heads.values():
        assert all(name in text for name in names)


def test_short_forms_have_a_few_characters() -> None:
    assert [short_duration(s) for s in (None, 0.0012, 0.25, 1.24, 42, 250, 7500, 260_000)] == [
        "", "1.2ms", "250ms", "1.2s", "42s", "4m10s", "2h05m", "3d",
    ]  # fmt: skip
    assert [short_rate(v) for v in (None, 0, 0.42, 12, 3400, 56_700, 1_200_000)] == [
        "", "0", "0.4", "12", "3,400", "56.7k", "1.2M",
    ]  # fmt: skip
